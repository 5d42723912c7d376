"""Online DPO: the best video of a group against its worst, by how much better than the anchor each is matched."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sage_grpo.math.matching import likelier
from sage_grpo.math.objectives import Ask, Loss, Objective, above_zero, objective


@objective("dpo")
@dataclass(frozen=True, kw_only=True)
class Dpo(Objective):
    r"""$-\log\mathrm{sigmoid}\left(-\tfrac\beta2\left[(\ell_w - \ell_{w,\mathrm{ref}})
    - (\ell_l - \ell_{l,\mathrm{ref}})\right]\right)$ for the better video $w$ and the worse one $l$, with the same
    noise. Each of the two carries the loss of the pair.
    """

    noised: ClassVar[bool] = True
    paired: ClassVar[bool] = True
    anchored: ClassVar[bool] = True

    beta: float = 2000.0
    r"""$\beta$: how soon a pair is distinguished well enough."""

    def __post_init__(self) -> None:
        above_zero(beta=self.beta)

    def loss(self, ask: Ask) -> Loss:
        anchor = ask.velocity.detach() if ask.anchor is None else ask.anchor
        gained = likelier(ask.velocity, anchor, ask.noise, ask.clean, self.reduction)
        side = (ask.advantage - _other(ask.advantage)).sign()  # 1 for the better one
        margin = self.beta / 2 * side * (gained - _other(gained))
        value = -torch.nn.functional.logsigmoid(margin)
        logs = likelier(ask.velocity, ask.old, ask.noise, ask.clean, self.reduction)
        return Loss.unheld(value, logs)


def _other(x: Tensor) -> Tensor:
    """Swap the two videos of each pair (B,)."""
    return x.view(-1, 2).flip(1).flatten()
