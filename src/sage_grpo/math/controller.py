"""The weight λ of the KL: a schedule, then feedback on the KL that was observed."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class KLRule:
    """How λ moves. `warmup` = 0 starts at `high` (constant when there is no feedback)."""

    low: float = 1e-7
    high: float = 1e-5
    warmup: int = 100
    feedback: Literal["none", "lagrangian", "paper"] = "none"
    target: float = 0.0
    history: int = 10
    band: float = 0.5


@dataclass(frozen=True)
class KLWeight:
    """λ with all that its future depends on: save this, and a resumed run goes on as if never stopped."""

    value: float
    updates: int = 0
    recent: tuple[float, ...] = ()


def warmup(update: int, rule: KLRule) -> float:
    """Eq. 41: linear from `low` to `high` over the first K updates."""
    return rule.high if update >= rule.warmup else rule.low + (rule.high - rule.low) * update / rule.warmup


def feedback(value: float, recent: tuple[float, ...], rule: KLRule) -> float:
    """Eq. 42 with the sign of a Lagrange multiplier: grow when the KL is too large.

    `paper` keeps the printed sign, which is positive feedback: λ runs to a bound.
    """
    mean = sum(recent) / len(recent)
    too_large, too_small = mean > (1 + rule.band) * rule.target, mean < (1 - rule.band) * rule.target
    if rule.feedback == "paper":
        too_large, too_small = too_small, too_large
    factor = 1.1 if too_large else 0.9 if too_small else 1.0
    return min(max(value * factor, rule.low), rule.high)


def initial_weight(rule: KLRule) -> KLWeight:
    return KLWeight(warmup(0, rule))


def next_weight(weight: KLWeight, kl: float, rule: KLRule) -> KLWeight:
    """λ for the next update, after one that observed `kl`."""
    updates, recent = weight.updates + 1, (*weight.recent, kl)[-rule.history :]
    if updates <= rule.warmup:
        return KLWeight(warmup(updates, rule), updates, recent)
    value = weight.value if rule.feedback == "none" else feedback(weight.value, recent, rule)
    return KLWeight(value, updates, recent)
