r"""The weight $\lambda$ of the KL: a schedule, then feedback on the KL that was observed."""

from dataclasses import dataclass
from typing import Literal

Feedback = Literal["none", "proportional", "lagrangian", "paper"]
LARGEST_ERROR = 10.0  # a KL further than this factor from its target counts as this far


@dataclass(frozen=True)
class KLRule:
    r"""The rule by which $\lambda$ moves: a warm-up, then feedback; without feedback it stays as it is then."""

    low: float = 1e-7
    r"""$\lambda$ before the first update, if there is a warm-up, and its lower bound."""
    high: float = 1e-5
    """Upper bound, and the value where the warm-up ends unless `start` is given."""
    start: float | None = None
    """Value where the warm-up ends and feedback begins; None: `high`."""
    warmup: int = 100
    r"""Number of updates of the warm-up; with 0, $\lambda$ begins where it would end."""
    feedback: Feedback = "none"
    """The kind of feedback after the warm-up."""
    target: float = 0.0
    """The KL that feedback aims at."""
    history: int = 10
    """Number of updates over whose KLs feedback takes the mean."""
    band: float = 0.5
    """How far that mean may be from the target, relative to it, before feedback acts; not for `proportional`."""
    gain: float = 1.0
    r"""For `proportional`: the power of KL/target by which $\lambda$ is multiplied over `history` updates."""
    damping: float = 1.0
    r"""For `proportional`: the power of the KL's own change by which $\lambda$ is multiplied, against overshoot."""


@dataclass(frozen=True)
class KLWeight:
    r"""The current $\lambda$ with all that its future depends on.

    A resumed run that restores it continues as if never stopped.
    """

    value: float
    updates: int = 0
    recent: tuple[float, ...] = ()
    """KLs of the last updates, as far as feedback looks back."""


def warmup(update: int, rule: KLRule) -> float:
    r"""Return $\lambda$ at update $u$ of the $K$ updates of the warm-up (Eq. 41), and its end afterwards.

    $$\lambda_u = \lambda_\mathrm{low} + (\lambda_\mathrm{high} - \lambda_\mathrm{low})\,u/K$$

    The end is `high`, or `start` in its place if that is given.
    """
    end = rule.high if rule.start is None else rule.start
    return end if update >= rule.warmup else rule.low + (end - rule.low) * update / rule.warmup


def feedback(value: float, recent: tuple[float, ...], rule: KLRule) -> float:
    r"""Return the next $\lambda$ after the warm-up, from the mean of the last `history` KLs.

    `lagrangian` is Eq. 42 with the sign of a Lagrange multiplier: grow when the KL is too large.

    $$\lambda \leftarrow \mathrm{clip}(f\lambda,\ \lambda_\mathrm{low},\ \lambda_\mathrm{high}),\qquad
    f = \begin{cases}1.1 & \overline{\mathrm{KL}} > (1+\mathrm{band})\cdot\mathrm{target}\\
    0.9 & \overline{\mathrm{KL}} < (1-\mathrm{band})\cdot\mathrm{target}\\ 1 & \text{otherwise}\end{cases}$$

    `paper` keeps the printed sign, which is positive feedback: $\lambda$ runs to a bound.

    `proportional` moves with the error and with its change, both on a logarithmic scale: a PI controller. It compares
    the mean of the last `history` KLs with the same mean one update earlier, so `recent` holds one KL more. It
    ignores the first `history` KLs after the warm-up, when Adam's steps hardly depend on $\lambda$ yet. The first mean
    is compared with the target, which corrects a wrong start in one step:

    $$f = (\overline{\mathrm{KL}} / \mathrm{target})^{\mathrm{gain}/\mathrm{history}}\cdot
    (\overline{\mathrm{KL}} / \overline{\mathrm{KL}}_{-1})^{\mathrm{damping}}$$

    Example:
        >>> rule = KLRule(low=1e-3, high=10, warmup=0, feedback="proportional", target=1e-4, history=2)
        >>> feedback(0.5, (4e-4, 4e-4, 4e-4), rule)  # four times too large: × 2 after one update, × 4 after two
        1.0
    """
    if rule.feedback == "proportional":
        factor = _proportional(recent, rule)
    else:
        mean = sum(recent) / len(recent)
        too_large, too_small = mean > (1 + rule.band) * rule.target, mean < (1 - rule.band) * rule.target
        if rule.feedback == "paper":
            too_large, too_small = too_small, too_large
        factor = 1.1 if too_large else 0.9 if too_small else 1.0
    return min(max(value * factor, rule.low), rule.high)


def _proportional(recent: tuple[float, ...], rule: KLRule) -> float:
    if len(recent) < rule.history:
        return 1.0

    def error(window: tuple[float, ...]) -> float:
        return min(max(sum(window) / rule.history / rule.target, 1 / LARGEST_ERROR), LARGEST_ERROR)

    now, before = error(recent[-rule.history :]), error(recent[:-1]) if len(recent) > rule.history else 1.0
    factor: float = now ** (rule.gain / rule.history) * (now / before) ** rule.damping
    return factor


def initial_weight(rule: KLRule) -> KLWeight:
    r"""Return $\lambda$ before the first update."""
    return KLWeight(warmup(0, rule))


def next_weight(weight: KLWeight, kl: float, rule: KLRule) -> KLWeight:
    r"""Return $\lambda$ for the next update, after an update that observed the KL `kl`."""
    own = rule.feedback == "proportional"
    updates, recent = weight.updates + 1, (*weight.recent, kl)[-rule.history - own :]
    if own and updates <= rule.warmup + rule.history:  # λ was another one, or Adam's first steps ignore it
        recent = ()
    if updates <= rule.warmup:
        return KLWeight(warmup(updates, rule), updates, recent)
    value = weight.value if rule.feedback == "none" or not recent else feedback(weight.value, recent, rule)
    return KLWeight(value, updates, recent)
