"""GRPO-Guard: the ratio without its bias, and the same clip at every step."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sage_grpo.math.gaussian import difference, reduce
from sage_grpo.math.kernels import KernelTable
from sage_grpo.math.objectives import Loss, LossInputs, Objective, above_zero, objective
from sage_grpo.math.objectives.grpo import clip_mask, surrogate


@objective("guard")
@dataclass(frozen=True, kw_only=True)
class Guard(Objective):
    r"""The clipped surrogate of $\log\rho = b\,\langle\varepsilon, \delta\rangle$, weighed by $1/\Delta$.

    The term $-\tfrac12 k^2\lVert\delta\rVert^2$ pulls all ratios below 1, so that the clip holds one side only: it is
    left out. Times $s$, ratios of all steps have the same spread.
    """

    clip: float = 2e-6
    """Ratios count within 1 ± clip."""

    def __post_init__(self) -> None:
        above_zero(clip=self.clip)

    def loss(self, inputs: LossInputs) -> Loss:
        logs = inputs.b * reduce(inputs.noise * difference(inputs.velocity, inputs.old), self.reduction)
        return Loss(surrogate(logs, inputs.advantage, self.clip), logs, clip_mask(logs, inputs.advantage, self.clip))

    def step_weights(self, table: KernelTable) -> Tensor:
        r"""Return the weights $1/\Delta$ (T,) with $\Delta = \sigma - \sigma'$, of mean 1 over the stochastic steps."""
        weights = torch.where(table.stochastic, 1 / (table.sigma - table.sigma_next), torch.zeros_like(table.sigma))
        return weights / weights[table.stochastic].mean()
