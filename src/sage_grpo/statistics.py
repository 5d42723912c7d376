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
    """A mean of n values with its standard error and interval, of 95 % unless `level` is another."""

    mean: float
    se: float
    low: float
    high: float
    n: int
    level: float = 0.95

    @property
    def standard_errors(self) -> float:
        """The mean in standard errors; where all values are equal, 0 or infinite."""
        if self.se:
            return self.mean / self.se
        return math.copysign(math.inf, self.mean) if self.mean else 0.0

    def __str__(self) -> str:
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}], n = {self.n}"


def effect(values: Sequence[float], level: float = 0.95) -> Effect:
    """Return the mean of independent values, such as the differences of pairs, with its t interval."""
    n = len(values)
    if n < 2:
        raise ValueError(f"{n} values have no interval; at least two are needed")
    mean = math.fsum(values) / n
    se = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1) / n)
    half = float(stats.t.ppf((1 + level) / 2, n - 1)) * se
    return Effect(mean, se, mean - half, mean + half, n, level)


def paired(treated: Sequence[float], control: Sequence[float], level: float = 0.95) -> Effect:
    """Return the mean difference, treated minus control, of two runs with equal seeds, with its t interval."""
    return effect([a - b for a, b in zip(treated, control, strict=True)], level)


def equivalent(found: Effect, margin: float) -> bool:
    """Return whether two one-sided t tests, each at 5 % for a level of 95 %, place the mean within ± margin."""
    half = float(stats.t.ppf(found.level, found.n - 1)) * found.se
    return -margin < found.mean - half and found.mean + half < margin


def verdict(found: Effect, *, expected: str = "positive", margin: float | None = None) -> str:
    """Return `equivalent` if the mean is known to be within ± margin, whatever its sign.

    Else return `reproduced` if the interval is on the expected side of 0, `not reproduced` if it is on the other, and
    `undecided` if it contains 0.
    """
    if margin is not None and equivalent(found, margin):
        return "equivalent"
    low, high = (found.low, found.high) if expected == "positive" else (-found.high, -found.low)
    if low > 0 or high < 0:
        return "reproduced" if low > 0 else "not reproduced"
    return "undecided"


def share(hits: Sequence[bool]) -> tuple[float, float, float]:
    """Return the share of hits with its 95 % interval by Wilson, as (share, low, high)."""
    found = stats.binomtest(sum(hits), len(hits))
    interval = found.proportion_ci(method="wilson")
    return float(found.statistic), float(interval.low), float(interval.high)


@dataclass(frozen=True)
class Changes:
    """The numbers of pairs that went from wrong to right and from right to wrong, and McNemar's exact p."""

    gained: int
    lost: int
    p: float


def mcnemar(before: Sequence[bool], after: Sequence[bool]) -> Changes:
    """Return how pairs changed, with a two-sided p. If none changed there is nothing to test, and p is 1."""
    gained = sum(b and not a for a, b in zip(before, after, strict=True))
    lost = sum(a and not b for a, b in zip(before, after, strict=True))
    p = float(stats.binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0
    return Changes(gained, lost, p)


def bootstrap(values: Sequence[float], *, draws: int = DRAWS, seed: int = 0) -> Effect:
    """Return a mean with its 95 % interval (BCa) by drawing the values, such as those of prompts, with replacement.

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
    """Return the two-sided p of a t test that the mean is 0. Equal values are certain: 1 where they are 0, else 0."""
    if np.ptp(values) == 0:
        return 1.0 if values[0] == 0 else 0.0
    return float(stats.ttest_1samp(values, 0.0).pvalue)


def discoveries(ps: Sequence[float], rate: float = 0.05) -> list[bool]:
    """Return which of many tests stand, if at most a share `rate` of those may be false (Benjamini-Hochberg)."""
    return [bool(p <= rate) for p in stats.false_discovery_control(ps)] if len(ps) else []


def holm(ps: Sequence[float]) -> list[float]:
    """Return each p corrected for the number of tests: the chance of any false one is that of a single test (Holm)."""
    order = np.argsort(ps)
    steps = [ps[i] * (len(ps) - place) for place, i in enumerate(order)]
    corrected = np.empty(len(ps))
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1.0) if steps else []
    return [float(p) for p in corrected]
