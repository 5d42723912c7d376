"""Online DPO: compares how much better than the anchor the policy matches the best and the worst video of a group."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sage_grpo.math.matching import matching_log_ratio
from sage_grpo.math.objectives import Loss, LossInputs, Objective, above_zero, objective


@objective("dpo")
@dataclass(frozen=True, kw_only=True)
class Dpo(Objective):
    r"""The objective of DPO: the loss of a pair, with the better video $w$ and the worse one $l$ under the same noise.

    $$-\log\mathrm{sigmoid}\left(-\tfrac\beta2\left[(\ell_w - \ell_{w,\mathrm{ref}})
    - (\ell_l - \ell_{l,\mathrm{ref}})\right]\right)$$

    Here $\ell$ is the matching error of the policy, and $\ell_\mathrm{ref}$ that of the anchor. Each of the two videos
    carries the loss of the pair.
    """

    renoised: ClassVar[bool] = True
    paired: ClassVar[bool] = True
    anchored: ClassVar[bool] = True

    beta: float = 2000.0
    r"""$\beta$: the larger, the sooner a pair counts as distinguished and adds little to the loss."""

    def __post_init__(self) -> None:
        above_zero(beta=self.beta)

    def loss(self, inputs: LossInputs) -> Loss:
        anchor = inputs.velocity.detach() if inputs.anchor is None else inputs.anchor
        gained = matching_log_ratio(inputs.velocity, anchor, inputs.noise, inputs.clean, self.reduction)
        side = (inputs.advantage - _other(inputs.advantage)).sign()  # 1 for the better one
        margin = self.beta / 2 * side * (gained - _other(gained))
        value = -torch.nn.functional.logsigmoid(margin)
        logs = matching_log_ratio(inputs.velocity, inputs.old, inputs.noise, inputs.clean, self.reduction)
        return Loss.unclipped(value, logs)


def _other(x: Tensor) -> Tensor:
    """Swap the two videos of each pair (B,)."""
    return x.view(-1, 2).flip(1).flatten()
