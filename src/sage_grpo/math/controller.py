r"""The weight $\lambda$ of the KL penalty: first a warm-up schedule, then feedback on the observed KL."""

from dataclasses import dataclass
from typing import Literal

Feedback = Literal["none", "proportional", "lagrangian", "paper"]
LARGEST_ERROR = 10.0  # a KL further than this factor from its target counts as this far


@dataclass(frozen=True)
class KLRule:
    r"""The rule for $\lambda$, the weight of the KL penalty: first a warm-up, then feedback or a constant value."""

    low: float = 1e-7
    r"""Lower bound of $\lambda$, and its value before the first update if there is a warm-up."""
    high: float = 1e-5
    r"""Upper bound of $\lambda$, and its value at the end of the warm-up unless `start` is given."""
    start: float | None = None
    r"""Value of $\lambda$ at the end of the warm-up, where feedback begins; None means `high`."""
    warmup: int = 100
    r"""Number of updates in the warm-up; with 0, $\lambda$ begins at the value that ends a warm-up."""
    feedback: Feedback = "none"
    r"""The kind of feedback after the warm-up, as in the function `feedback`; `none` keeps $\lambda$ constant."""
    target: float = 0.0
    """The KL that feedback aims at."""
    history: int = 10
    """Number of most recent updates whose mean KL feedback uses."""
    band: float = 0.5
    """Relative distance of the mean KL from the target up to which feedback does nothing; not used by
    `proportional`."""
    gain: float = 1.0
    r"""For `proportional`: over `history` updates, $\lambda$ is multiplied by this power of KL/target."""
    damping: float = 1.0
    r"""For `proportional`: in each update, $\lambda$ is multiplied by this power of the mean KL's relative change,
    against overshoot."""


@dataclass(frozen=True)
class KLWeight:
    r"""The current $\lambda$, with all state that its next values depend on.

    A resumed run that restores this state continues as if it had never stopped.
    """

    value: float
    updates: int = 0
    recent: tuple[float, ...] = ()
    """KLs of the most recent updates, oldest first, as many as feedback uses."""


def warmup(update: int, rule: KLRule) -> float:
    r"""Return $\lambda$ at update $u$ of a warm-up of $K$ updates (Eq. 41); after the warm-up, return its last value.

    $$\lambda_u = \lambda_\mathrm{low} + (\lambda_\mathrm{high} - \lambda_\mathrm{low})\,u/K$$

    If `rule.start` is given, it takes the place of $\lambda_\mathrm{high}$.
    """
    end = rule.high if rule.start is None else rule.start
    return end if update >= rule.warmup else rule.low + (end - rule.low) * update / rule.warmup


def feedback(value: float, recent: tuple[float, ...], rule: KLRule) -> float:
    r"""Return the $\lambda$ that follows `value` after the warm-up, from the `recent` KLs (oldest first).

    $\overline{\mathrm{KL}}$ is the mean of the last `history` KLs. `lagrangian` is Eq. 42 with the sign of a Lagrange
    multiplier: $\lambda$ grows when the KL is too large.

    $$\lambda \leftarrow \mathrm{clip}(f\lambda,\ \lambda_\mathrm{low},\ \lambda_\mathrm{high}),\qquad
    f = \begin{cases}1.1 & \overline{\mathrm{KL}} > (1+\mathrm{band})\cdot\mathrm{target}\\
    0.9 & \overline{\mathrm{KL}} < (1-\mathrm{band})\cdot\mathrm{target}\\ 1 & \text{otherwise}\end{cases}$$

    `paper` keeps the sign printed in the paper, which is positive feedback: $\lambda$ runs to a bound.

    `proportional` is a PI controller: it reacts to the error KL/target and to the change of this error, both on a
    logarithmic scale. The change compares the mean of the last `history` KLs with the same mean one update earlier, so
    `recent` has one KL more. The first `history` KLs after the warm-up are ignored, because Adam's steps hardly depend
    on $\lambda$ yet. The first mean is compared with the target, which corrects a wrong start in one step:

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
    r"""Return the state of $\lambda$ before the first update."""
    return KLWeight(warmup(0, rule))


def next_weight(weight: KLWeight, kl: float, rule: KLRule) -> KLWeight:
    r"""Return the state of $\lambda$ for the next update, from the state `weight` and the `kl` of this update."""
    own = rule.feedback == "proportional"
    updates, recent = weight.updates + 1, (*weight.recent, kl)[-rule.history - own :]
    if own and updates <= rule.warmup + rule.history:  # λ was another one, or Adam's first steps ignore it
        recent = ()
    if updates <= rule.warmup:
        return KLWeight(warmup(updates, rule), updates, recent)
    value = weight.value if rule.feedback == "none" or not recent else feedback(weight.value, recent, rule)
    return KLWeight(value, updates, recent)
