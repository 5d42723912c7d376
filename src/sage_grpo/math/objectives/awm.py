"""AWM: advantage-weighted matching, with the matching error in place of a log-likelihood."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sage_grpo.math.loss import clipped, surrogate
from sage_grpo.math.matching import matching_error
from sage_grpo.math.objectives import Ask, Loss, Objective, above_zero, objective

TINY = 1e-10


@objective("awm")
@dataclass(frozen=True, kw_only=True)
class Awm(Objective):
    r"""The clipped surrogate of $\log\rho = W(\ell_\mathrm{old}) - W(\ell)$.

    $$W(\ell) = \frac{\sigma^n}{p}\left((\ell + 10^{-10})^p - 10^{-10p}\right)$$

    With $p = 1$ and $n = 0, 1, 2$ that is $\ell$, $\sigma\ell$ and $\sigma^2\ell$. A smaller $p$ looks at
    relative errors.
    """

    noised: ClassVar[bool] = True

    clip: float = 1.0
    """Ratios count within 1 ± clip."""
    power: float = 0.25
    """$p$."""
    sigma_power: float = 1.0
    """$n$."""

    def __post_init__(self) -> None:
        above_zero(clip=self.clip, power=self.power)

    def loss(self, ask: Ask) -> Loss:
        errors = (matching_error(v, ask.noise, ask.clean, self.reduction) for v in (ask.velocity, ask.old))
        new, old = (self.weighed(error, ask.sigma) for error in errors)
        logs = old - new
        return Loss(surrogate(logs, ask.advantage, self.clip), logs, clipped(logs, ask.advantage, self.clip))

    def weighed(self, error: Tensor, sigma: float) -> Tensor:
        """$W$."""
        beyond = (error + TINY).pow(self.power) - TINY**self.power
        weighed: Tensor = beyond * sigma**self.sigma_power / self.power
        return weighed
