"""Paired effects with their intervals: Student's t on differences of equal seeds."""

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
