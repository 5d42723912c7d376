"""What a plan proposes to change in a layout that fits: copies of the weights, so that nodes exchange less."""

from dataclasses import dataclass

from sage_grpo.config import RecipeConfig
from sage_grpo.errors import UserError
from sage_grpo.plan.estimate import Plan, estimate

WORTH = 0.01  # share of an iteration that a proposal must save


@dataclass(frozen=True)
class Proposal:
    """A change of the recipe, the share of an iteration that it saves, 0 to 1, and the memory that it then needs."""

    change: str
    saves: float
    saves_if_slow: float  # with every assumption at its slow value
    memory: int


def copies(plan: Plan) -> Proposal | None:
    """Return how many copies of the weights to hold, or None if more copies do not fit or save little.

    With a copy per node, weights are gathered over the fast links inside the node alone. Gradients of the copies are
    added up once per update. If a copy per node does not fit, two nodes share one, and so on.
    """
    layout = plan.config.parallel
    nodes, rest = divmod(layout.processes, plan.gpu.per_node)
    if layout.replicate > 1 or nodes < 2 or rest:
        return None
    for number in (n for n in range(nodes, 1, -1) if nodes % n == 0):
        values = plan.config.model_dump()
        values["parallel"] |= {"replicate": number}
        try:
            other = estimate(RecipeConfig.model_validate(values), plan.gpu, plan.known)
        except (UserError, ValueError):  # this model or recipe cannot be copied so often
            continue
        if other.fits:
            saves = 1 - other.iteration / plan.iteration
            slow = 1 - other.slow.iteration / plan.slow.iteration
            found = Proposal(f"parallel.replicate={number}", saves, slow, other.memory.peak)
            return found if saves >= WORTH else None
    return None
