"""Paired effects with their intervals: Student's t on differences of equal seeds; shares by Wilson and McNemar."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats


@dataclass(frozen=True)
class Effect:
    """A mean with its standard error and 95 % interval."""

    mean: float
    se: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}], n = {self.n}"


def effect(values: Sequence[float]) -> Effect:
    """Of independent values, such as the differences of pairs."""
    n = len(values)
    if n < 2:
        raise ValueError(f"{n} values have no interval; at least two are needed")
    mean = math.fsum(values) / n
    se = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1) / n)
    half = float(stats.t.ppf(0.975, n - 1)) * se
    return Effect(mean, se, mean - half, mean + half, n)


def paired(treated: Sequence[float], control: Sequence[float]) -> Effect:
    """Of the differences of two runs with equal seeds."""
    return effect([a - b for a, b in zip(treated, control, strict=True)])


def verdict(found: Effect, *, expected: str = "positive") -> str:
    """`reproduced` if the interval lies on the expected side of 0, `not reproduced` on the other, else `undecided`."""
    low, high = (found.low, found.high) if expected == "positive" else (-found.high, -found.low)
    return "reproduced" if low > 0 else "not reproduced" if high < 0 else "undecided"


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
