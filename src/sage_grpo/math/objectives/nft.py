"""DiffusionNFT: the policy is mixed with the old one into a better and a worse policy, and both are matched."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sage_grpo.math.gaussian import difference, reduce
from sage_grpo.math.matching import matching_log_ratio
from sage_grpo.math.objectives import Loss, LossInputs, Objective, above_zero, objective

SMALLEST = 1e-5


@objective("nft")
@dataclass(frozen=True, kw_only=True)
class Nft(Objective):
    r"""The objective of DiffusionNFT: weighted matching errors of a better policy $v^+$ and a worse policy $v^-$.

    $$\frac{A_\mathrm{max}}{\beta}\left[r\,\frac{\lVert\hat x^+ - x_0\rVert^2}{w^+}
    + (1-r)\,\frac{\lVert\hat x^- - x_0\rVert^2}{w^-}\right],\qquad \hat x^\pm = x - \sigma v^\pm$$

    Both mix the policy with the old one: $v^\pm = v_\mathrm{old} \pm \beta\delta$. The advantage gives the share
    $r = \tfrac12 + A/2A_\mathrm{max}$ of the better one. $w^\pm$ is the mean of $|\hat x^\pm - x_0|$, without gradient.
    """

    renoised: ClassVar[bool] = True

    beta: float = 1.0
    r"""$\beta$: how far the two mixtures are from the old policy."""
    decay: float = 0.5
    """Largest share (0 to 1) of its own weights that the old policy keeps after an iteration."""
    decay_rise: float = 0.001
    """How much this share rises per iteration, from 0 to `decay`."""

    def __post_init__(self) -> None:
        above_zero(beta=self.beta)
        if not 0 <= self.decay < 1 or self.decay_rise < 0:
            raise ValueError(
                f"decay is {self.decay:g} and decay_rise {self.decay_rise:g}; use 0 ≤ decay < 1, and a rise of 0 or "
                "more"
            )

    def loss(self, inputs: LossInputs) -> Loss:
        share = 0.5 + inputs.advantage.double() / (2 * self.advantage_limit)
        delta = self.beta * difference(inputs.velocity, inputs.old).double()
        off = (
            inputs.sigma * difference(inputs.noise - inputs.clean, inputs.old).double()
        )  # of the old policy's clean estimate
        better, worse = (self._error(off - side * inputs.sigma * delta) for side in (1, -1))
        value = self.advantage_limit / self.beta * (share * better + (1 - share) * worse)
        logs = matching_log_ratio(inputs.velocity, inputs.old, inputs.noise, inputs.clean, self.reduction)
        return Loss.unclipped(value, logs)

    def _error(self, off: Tensor) -> Tensor:
        weight = off.detach().flatten(1).abs().mean(1).clamp(min=SMALLEST)
        return reduce(off.square(), self.reduction) / weight

    def old_decay(self, iteration: int) -> float:
        return min(self.decay_rise * iteration, self.decay)
