"""Paired effects with their intervals: Student's t on differences of equal seeds; shares by Wilson and McNemar;
means over prompts by the bootstrap."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

DRAWS = 9999  # of a bootstrap


@dataclass(frozen=True)
class Effect:
    """A mean with its standard error and interval, of 95 % unless another level is asked for."""

    mean: float
    se: float
    low: float
    high: float
    n: int
    level: float = 0.95

    @property
    def standard_errors(self) -> float:
        """How many the mean is from 0; where all values are equal, none or infinitely many."""
        if self.se:
            return self.mean / self.se
        return math.copysign(math.inf, self.mean) if self.mean else 0.0

    def __str__(self) -> str:
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}], n = {self.n}"


def effect(values: Sequence[float], level: float = 0.95) -> Effect:
    """Return mean and interval of independent values, such as the differences of pairs."""
    n = len(values)
    if n < 2:
        raise ValueError(f"{n} values have no interval; at least two are needed")
    mean = math.fsum(values) / n
    se = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1) / n)
    half = float(stats.t.ppf((1 + level) / 2, n - 1)) * se
    return Effect(mean, se, mean - half, mean + half, n, level)


def paired(treated: Sequence[float], control: Sequence[float], level: float = 0.95) -> Effect:
    """Return the effect of the differences of two runs with equal seeds."""
    return effect([a - b for a, b in zip(treated, control, strict=True)], level)


def equivalent(found: Effect, margin: float) -> bool:
    """Whether two one-sided t tests, each at 5 % for a level of 95 %, say that the mean lies within ± margin."""
    half = float(stats.t.ppf(found.level, found.n - 1)) * found.se
    return -margin < found.mean - half and found.mean + half < margin


def verdict(found: Effect, *, expected: str = "positive", margin: float | None = None) -> str:
    """`equivalent` if the mean is known to lie within ± margin, whatever its sign.

    Else `reproduced` if the interval lies on the expected side of 0, `not reproduced` on the other, and `undecided`
    between them.
    """
    if margin is not None and equivalent(found, margin):
        return "equivalent"
    low, high = (found.low, found.high) if expected == "positive" else (-found.high, -found.low)
    if low > 0 or high < 0:
        return "reproduced" if low > 0 else "not reproduced"
    return "undecided"


def share(hits: Sequence[bool]) -> tuple[float, float, float]:
    """A share with its 95 % interval by Wilson."""
    found = stats.binomtest(sum(hits), len(hits))
    interval = found.proportion_ci(method="wilson")
    return float(found.statistic), float(interval.low), float(interval.high)


@dataclass(frozen=True)
class Changes:
    """Pairs that went from wrong to right and from right to wrong, and McNemar's exact p of it."""

    gained: int
    lost: int
    p: float


def mcnemar(before: Sequence[bool], after: Sequence[bool]) -> Changes:
    """Two-sided; with no pair changed there is nothing to test, and p is 1."""
    gained = sum(b and not a for a, b in zip(before, after, strict=True))
    lost = sum(a and not b for a, b in zip(before, after, strict=True))
    p = float(stats.binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0
    return Changes(gained, lost, p)


def bootstrap(values: Sequence[float], *, draws: int = DRAWS, seed: int = 0) -> Effect:
    """A mean with its 95 % interval (BCa) by drawing the values, such as those of prompts, with replacement.

    The same values always have the same interval. Equal values have one without width: BCa is not defined for them.
    """
    n, array = len(values), np.asarray(values, dtype=np.float64)
    if n < 2:
        raise ValueError(f"{n} values have no interval; at least two are needed")
    mean = float(array.mean())
    if np.ptp(array) == 0:
        return Effect(mean, 0.0, mean, mean, n)
    rng = np.random.default_rng(seed)
    found = stats.bootstrap((array,), np.mean, n_resamples=draws, method="BCa", random_state=rng)
    interval = found.confidence_interval
    return Effect(mean, float(found.standard_error), float(interval.low), float(interval.high), n)


def p_of_zero(values: Sequence[float]) -> float:
    """Two-sided p, by Student's t, that the mean is 0. Equal values are certain: 1 where they are 0, else 0."""
    if np.ptp(values) == 0:
        return 1.0 if values[0] == 0 else 0.0
    return float(stats.ttest_1samp(values, 0.0).pvalue)


def discoveries(ps: Sequence[float], rate: float = 0.05) -> list[bool]:
    """Which of many tests stand when at most a share `rate` of those that do may be false (Benjamini-Hochberg)."""
    return [bool(p <= rate) for p in stats.false_discovery_control(ps)] if len(ps) else []


def holm(ps: Sequence[float]) -> list[float]:
    """Each p corrected for the number of tests, so that the chance of any false one stays what it is (Holm)."""
    order = np.argsort(ps)
    steps = [ps[i] * (len(ps) - place) for place, i in enumerate(order)]
    corrected = np.empty(len(ps))
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1.0) if steps else []
    return [float(p) for p in corrected]
