"""Flow-DPPO: ratios are not clipped, but a video that has moved too far from the old policy is not pushed further."""

from dataclasses import dataclass

import torch

from sage_grpo.math.gaussian import kl
from sage_grpo.math.objectives import Loss, LossInputs, Objective, above_zero, objective


@objective("dppo")
@dataclass(frozen=True, kw_only=True)
class Dppo(Objective):
    r"""The loss $-\rho A$, set to 0 where $\tfrac12 k^2\lVert\delta\rVert^2 \ge \tau$ and the video pushes outward.

    Outward means away from the old policy: $\rho > 1$ with $A > 0$, or $\rho < 1$ with $A < 0$.
    """

    divergence: float = 1e-5
    r"""$\tau$: a video whose KL to the old policy reaches this value is not pushed further."""

    def __post_init__(self) -> None:
        above_zero(divergence=self.divergence)

    def loss(self, inputs: LossInputs) -> Loss:
        logs = inputs.log_ratio(self.reduction)
        ratio, advantage = logs.double().exp(), inputs.advantage
        with torch.no_grad():
            moved = kl(inputs.velocity, inputs.old, inputs.k, self.reduction)
            outward = ((ratio > 1) & (advantage > 0)) | ((ratio < 1) & (advantage < 0))
            clipped = outward & (moved >= self.divergence)
        return Loss(torch.where(clipped, 0.0, -ratio * advantage), logs, clipped)
