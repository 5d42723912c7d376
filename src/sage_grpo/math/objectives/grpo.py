"""The clipped surrogate of PPO and GRPO, with the exact ratio of two Gaussian steps."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sage_grpo.math.objectives import Loss, LossInputs, Objective, above_zero, objective


@objective("grpo")
@dataclass(frozen=True, kw_only=True)
class Grpo(Objective):
    r"""The objective of GRPO: the loss $-\min(\rho A,\ \mathrm{clip}(\rho, 1 \pm c)\,A)$."""

    clip: float = 1e-4
    """$c$: ratios are clipped to 1 ± this value. With the mean reduction, ratios differ from 1 by about 1e-5."""

    def __post_init__(self) -> None:
        above_zero(clip=self.clip)

    def loss(self, inputs: LossInputs) -> Loss:
        logs = inputs.log_ratio(self.reduction)
        return Loss(surrogate(logs, inputs.advantage, self.clip), logs, clip_mask(logs, inputs.advantage, self.clip))


def surrogate(log_ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    r"""Return the clipped surrogate loss per video (B,) (Eq. 4), with the ratio $\rho$ and the clip range $c$.

    $$-\min\left(\rho A,\ \mathrm{clip}(\rho,\ 1-c,\ 1+c)\,A\right)$$

    It is float64, because with mean reduction ratios differ from 1 by 1e-5, where float32 has two digits left.

    Examples:
        >>> surrogate(torch.tensor([0.0, 0.5]), torch.tensor([1.0, 1.0]), clip=0.2)
        tensor([-1.0000, -1.2000], dtype=torch.float64)
    """
    ratio = log_ratio.double().exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)


def clip_mask(log_ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """Return the mask (B,) of clipped videos, which get no gradient.

    Examples:
        >>> clip_mask(torch.tensor([0.0, 0.5, -0.5]), torch.tensor([1.0, 1.0, 1.0]), clip=0.2)
        tensor([False,  True, False])
    """
    ratio = log_ratio.double().exp()
    return ((ratio > 1 + clip) & (advantage > 0)) | ((ratio < 1 - clip) & (advantage < 0))
