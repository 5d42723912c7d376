r"""The weight $\lambda$ of the KL: a schedule, then feedback on the KL that was observed."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class KLRule:
    r"""How $\lambda$ moves. `warmup` = 0 starts at `high` (constant when there is no feedback)."""

    low: float = 1e-7
    """Where it starts, and its lower bound."""
    high: float = 1e-5
    """Where the warm-up ends, and its upper bound."""
    warmup: int = 100
    """Updates from `low` to `high`."""
    feedback: Literal["none", "lagrangian", "paper"] = "none"
    """What it does afterwards."""
    target: float = 0.0
    """The KL that feedback aims at."""
    history: int = 10
    """Updates whose KLs feedback takes the mean of."""
    band: float = 0.5
    """How far that mean may be from the target, relative to it, before anything is done."""


@dataclass(frozen=True)
class KLWeight:
    r"""$\lambda$ with all that its future depends on: save this, and a resumed run goes on as if never stopped."""

    value: float
    updates: int = 0
    recent: tuple[float, ...] = ()


def warmup(update: int, rule: KLRule) -> float:
    r"""Eq. 41, for update $u$ of the first $K$; `high` afterwards.

    $$\lambda_u = \lambda_\mathrm{low} + (\lambda_\mathrm{high} - \lambda_\mathrm{low})\,u/K$$
    """
    return rule.high if update >= rule.warmup else rule.low + (rule.high - rule.low) * update / rule.warmup


def feedback(value: float, recent: tuple[float, ...], rule: KLRule) -> float:
    r"""Eq. 42 with the sign of a Lagrange multiplier: grow when the KL is too large.

    $$\lambda \leftarrow \mathrm{clip}(f\lambda,\ \lambda_\mathrm{low},\ \lambda_\mathrm{high}),\qquad
    f = \begin{cases}1.1 & \overline{\mathrm{KL}} > (1+\mathrm{band})\cdot\mathrm{target}\\
    0.9 & \overline{\mathrm{KL}} < (1-\mathrm{band})\cdot\mathrm{target}\\ 1 & \text{otherwise}\end{cases}$$

    `paper` keeps the printed sign, which is positive feedback: $\lambda$ runs to a bound.
    """
    mean = sum(recent) / len(recent)
    too_large, too_small = mean > (1 + rule.band) * rule.target, mean < (1 - rule.band) * rule.target
    if rule.feedback == "paper":
        too_large, too_small = too_small, too_large
    factor = 1.1 if too_large else 0.9 if too_small else 1.0
    return min(max(value * factor, rule.low), rule.high)


def initial_weight(rule: KLRule) -> KLWeight:
    r"""$\lambda$ before the first update."""
    return KLWeight(warmup(0, rule))


def next_weight(weight: KLWeight, kl: float, rule: KLRule) -> KLWeight:
    r"""$\lambda$ for the next update, after one that observed `kl`."""
    updates, recent = weight.updates + 1, (*weight.recent, kl)[-rule.history :]
    if updates <= rule.warmup:
        return KLWeight(warmup(updates, rule), updates, recent)
    value = weight.value if rule.feedback == "none" else feedback(weight.value, recent, rule)
    return KLWeight(value, updates, recent)
