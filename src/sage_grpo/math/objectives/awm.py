"""AWM, advantage-weighted matching: a clipped surrogate with the matching error in place of a log-likelihood."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sage_grpo.math.matching import matching_error
from sage_grpo.math.objectives import Loss, LossInputs, Objective, above_zero, objective
from sage_grpo.math.objectives.grpo import clip_mask, surrogate

TINY = 1e-10


@objective("awm")
@dataclass(frozen=True, kw_only=True)
class Awm(Objective):
    r"""The objective of AWM: the clipped surrogate of $\log\rho = W(\ell_\mathrm{old}) - W(\ell)$.

    $$W(\ell) = \frac{\sigma^n}{p}\left((\ell + 10^{-10})^p - 10^{-10p}\right)$$

    Here $\ell$ and $\ell_\mathrm{old}$ are the matching errors of the policy and of the old policy. With $p = 1$ and
    $n = 0, 1, 2$, $W(\ell)$ is $\ell$, $\sigma\ell$ and $\sigma^2\ell$. A smaller $p$ weighs relative errors more.
    """

    renoised: ClassVar[bool] = True

    clip: float = 1.0
    """Ratios are clipped to 1 ± this value."""
    power: float = 0.25
    """The power $p$ of the matching error."""
    sigma_power: float = 1.0
    """The power $n$ of the noise level."""

    def __post_init__(self) -> None:
        above_zero(clip=self.clip, power=self.power)

    def loss(self, inputs: LossInputs) -> Loss:
        errors = (matching_error(v, inputs.noise, inputs.clean, self.reduction) for v in (inputs.velocity, inputs.old))
        new, old = (self._weighted(error, inputs.sigma) for error in errors)
        logs = old - new
        return Loss(surrogate(logs, inputs.advantage, self.clip), logs, clip_mask(logs, inputs.advantage, self.clip))

    def _weighted(self, error: Tensor, sigma: float) -> Tensor:
        r"""Return $W(\ell)$ per video (B,)."""
        beyond = (error + TINY).pow(self.power) - TINY**self.power
        weighted: Tensor = beyond * sigma**self.sigma_power / self.power
        return weighted
