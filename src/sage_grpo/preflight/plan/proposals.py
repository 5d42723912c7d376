"""What a plan proposes: changes that fit, save time and leave the algorithm as it is."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sage_grpo.config import ConfigError, RecipeConfig
from sage_grpo.config.load import validate
from sage_grpo.errors import UserError
from sage_grpo.preflight.plan.estimate import Plan, estimate

WORTH = 0.01  # share of an iteration that a proposal must save


@dataclass(frozen=True)
class Proposal:
    """A change of the recipe, the share of an iteration that it saves, 0 to 1, and the memory that it then needs."""

    change: str
    saves: float
    saves_if_slow: float  # with every assumption at its slow value
    memory: int


def proposals(plan: Plan) -> list[Proposal]:
    """Return the changes that fit and save at least `WORTH` of an iteration, each as if it were made alone."""
    return [found for found in (keep_attention(plan), copies(plan)) if found and found.saves >= WORTH]


def keep_attention(plan: Plan) -> Proposal | None:
    """Return what it saves to recompute all but the outputs of attention, if the recipe recomputes everything."""
    tuning = plan.config.tuning
    if not tuning.gradient_checkpointing or tuning.keep_attention or tuning.compile:
        return None
    return _try(plan, "tuning", "keep_attention", True)


def copies(plan: Plan) -> Proposal | None:
    """Return how many copies of the weights fit and what they save, or None if more than one does not fit.

    With a copy per node, weights are gathered over the fast links inside the node alone. Gradients of the copies are
    added up once per update. If a copy per node does not fit, two nodes share one, and so on.
    """
    layout = plan.config.parallel
    nodes, rest = divmod(layout.processes, plan.gpu.per_node)
    if layout.replicate > 1 or rest:
        return None
    tries = (_try(plan, "parallel", "replicate", n) for n in _divisors(nodes))
    return next((found for found in tries if found), None)


def _divisors(number: int) -> Iterator[int]:
    return (n for n in range(number, 1, -1) if number % n == 0)


def _try(plan: Plan, section: str, key: str, value: Any) -> Proposal | None:
    values = plan.config.model_dump()
    values[section] |= {key: value}
    try:
        other = estimate(validate(values, RecipeConfig), plan.gpu, plan.known)
    except (ConfigError, UserError):  # not for this model or layout
        return None
    if not other.fits:
        return None
    saves, slow = (1 - b.iteration / a.iteration for a, b in ((plan, other), (plan.slow, other.slow)))
    return Proposal(f"{section}.{key}={str(value).lower()}", saves, slow, other.memory.peak)
