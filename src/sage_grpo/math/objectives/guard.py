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
    r"""The objective of GRPO-Guard: the clipped surrogate of $\log\rho = b\,\langle\varepsilon, \delta\rangle$.

    The usual term $-\tfrac12 k^2\lVert\delta\rVert^2$ is left out. It pulls all ratios below 1, so that only one side
    of the clip range acts. The factor $b = ks$ in place of $k$ gives the ratios of all steps the same spread. Steps are
    weighed by $1/\Delta$.
    """

    clip: float = 2e-6
    """Ratios are clipped to 1 ± this value."""

    def __post_init__(self) -> None:
        above_zero(clip=self.clip)

    def loss(self, inputs: LossInputs) -> Loss:
        logs = inputs.b * reduce(inputs.noise * difference(inputs.velocity, inputs.old), self.reduction)
        return Loss(surrogate(logs, inputs.advantage, self.clip), logs, clip_mask(logs, inputs.advantage, self.clip))

    def step_weights(self, table: KernelTable) -> Tensor:
        r"""Return the step weights $1/\Delta$ (T,) with $\Delta = \sigma - \sigma'$, scaled to mean 1.

        The mean is over the stochastic steps; other steps have the weight 0.
        """
        weights = torch.where(table.stochastic, 1 / (table.sigma - table.sigma_next), torch.zeros_like(table.sigma))
        return weights / weights[table.stochastic].mean()
