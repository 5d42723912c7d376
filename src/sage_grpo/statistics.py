"""Confidence intervals and tests for results: Student's t for paired differences of equal seeds, Wilson and McNemar for
shares of hits, and the bootstrap for means over prompts."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

DRAWS = 9999  # of a bootstrap


@dataclass(frozen=True)
class Effect:
    """The mean of `n` values, its standard error `se`, and its confidence interval from `low` to `high` at `level`."""

    mean: float
    se: float
    low: float
    high: float
    n: int
    level: float = 0.95

    @property
    def standard_errors(self) -> float:
        """The mean divided by its standard error. If the error is 0: 0 for a mean of 0, else plus or minus infinity."""
        if self.se:
            return self.mean / self.se
        return math.copysign(math.inf, self.mean) if self.mean else 0.0

    def __str__(self) -> str:
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}], n = {self.n}"


def effect(values: Sequence[float], level: float = 0.95) -> Effect:
    """Return the mean of at least two independent values, such as differences of pairs, with Student's t interval."""
    n = len(values)
    if n < 2:
        raise ValueError(f"{n} values have no interval; at least two are needed")
    mean = math.fsum(values) / n
    se = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1) / n)
    half = float(stats.t.ppf((1 + level) / 2, n - 1)) * se
    return Effect(mean, se, mean - half, mean + half, n, level)


def paired(treated: Sequence[float], control: Sequence[float], level: float = 0.95) -> Effect:
    """Return the mean of `treated` minus `control`, with Student's t interval.

    Both have one value per seed, in the same order of seeds.
    """
    return effect([a - b for a, b in zip(treated, control, strict=True)], level)


def equivalent(found: Effect, margin: float) -> bool:
    """Return whether the mean is significantly within ± `margin`, by two one-sided t tests (TOST).

    Each test has the error rate 1 - level, which is 5 % for a level of 95 %.
    """
    half = float(stats.t.ppf(found.level, found.n - 1)) * found.se
    return -margin < found.mean - half and found.mean + half < margin


def verdict(found: Effect, *, expected: str = "positive", margin: float | None = None) -> str:
    """Return in words whether an effect has the expected sign.

    Return `equivalent` if a margin is given and the mean is significantly within ± `margin`, whatever the sign. Else
    return `reproduced` if the confidence interval is on the expected side of 0, `not reproduced` if the interval is on
    the other side, and `undecided` if the interval contains 0.

    Args:
        found: The measured effect.
        expected: The expected sign of the mean, "positive" or "negative".
        margin: Largest mean that counts as no effect; None to skip this test.
    """
    if margin is not None and equivalent(found, margin):
        return "equivalent"
    low, high = (found.low, found.high) if expected == "positive" else (-found.high, -found.low)
    if low > 0 or high < 0:
        return "reproduced" if low > 0 else "not reproduced"
    return "undecided"


def share(hits: Sequence[bool]) -> tuple[float, float, float]:
    """Return the share of True values, from 0 to 1, with its 95 % interval by Wilson, as (share, low, high)."""
    found = stats.binomtest(sum(hits), len(hits))
    interval = found.proportion_ci(method="wilson")
    return float(found.statistic), float(interval.low), float(interval.high)


def share_by_group(hits: Sequence[bool], groups: Sequence[Hashable]) -> tuple[float, float, float]:
    """Return the share of True values, from 0 to 1, with a 95 % interval over groups, as (share, low, high).

    Values of one group are alike, such as videos of one prompt, so they count for less than independent values. The
    interval is Wilson's for as many independent values as have the variance of the mean of the groups' shares. These
    are at least as many as groups, and at most as many as values. If all groups have one share, it is Wilson's for the
    number of groups.

    Examples:
        >>> [round(x, 2) for x in share_by_group([True, True, False, False], ["a", "a", "b", "b"])]
        [0.5, 0.09, 0.91]
    """
    members: dict[Hashable, list[bool]] = {}
    for group, hit in zip(groups, hits, strict=True):
        members.setdefault(group, []).append(hit)
    shares = np.array([sum(own) / len(own) for own in members.values()])
    mean, n = float(shares.mean()), len(shares)
    variance = float(shares.var(ddof=1)) / n if n > 1 else 0.0
    effective = min(max(mean * (1 - mean) / variance, n), len(hits)) if variance > 0 else n
    z = float(stats.norm.ppf(0.975))
    middle = (mean + z**2 / (2 * effective)) / (1 + z**2 / effective)
    half = z / (1 + z**2 / effective) * (mean * (1 - mean) / effective + z**2 / (4 * effective**2)) ** 0.5
    return mean, max(middle - half, 0.0), min(middle + half, 1.0)


@dataclass(frozen=True)
class Changes:
    """How many answers changed: `gained` from wrong to right, `lost` from right to wrong; `p` is McNemar's p-value."""

    gained: int
    lost: int
    p: float


def mcnemar(before: Sequence[bool], after: Sequence[bool]) -> Changes:
    """Return how many answers changed between two runs, with the two-sided p-value of McNemar's exact test.

    `before` and `after` say for the same items, in the same order, whether the answer is right. If no answer changed, p
    is 1.
    """
    gained = sum(b and not a for a, b in zip(before, after, strict=True))
    lost = sum(a and not b for a, b in zip(before, after, strict=True))
    p = float(stats.binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0
    return Changes(gained, lost, p)


def bootstrap(values: Sequence[float], *, draws: int = DRAWS, seed: int = 0) -> Effect:
    """Return the mean of `values` with its 95 % bootstrap interval (BCa), from `draws` resamples with replacement.

    The values must be independent, such as one per prompt. The same values and seed always give the same interval. If
    all values are equal, the interval has no width, because BCa is not defined for them.
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
    """Return the two-sided p-value of a t test of the hypothesis that the mean is 0.

    If all values are equal there is nothing to test: p is 1 if they are 0, else 0.
    """
    if np.ptp(values) == 0:
        return 1.0 if values[0] == 0 else 0.0
    return float(stats.ttest_1samp(values, 0.0).pvalue)


def discoveries(ps: Sequence[float], rate: float = 0.05) -> list[bool]:
    """Return, for each p-value, whether its test counts as a discovery by the procedure of Benjamini and Hochberg.

    Among the discoveries, the expected share of false ones is at most `rate` (0 to 1).
    """
    return [bool(p <= rate) for p in stats.false_discovery_control(ps)] if len(ps) else []


def holm(ps: Sequence[float]) -> list[float]:
    """Return each p-value corrected for the number of tests by Holm's method, in the given order.

    If every corrected p below 5 % counts as a finding, the chance that any finding is false is at most 5 %.
    """
    order = np.argsort(ps)
    steps = [ps[i] * (len(ps) - place) for place, i in enumerate(order)]
    corrected = np.empty(len(ps))
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1.0) if steps else []
    return [float(p) for p in corrected]
