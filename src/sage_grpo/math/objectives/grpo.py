"""The clipped surrogate of PPO and GRPO, with the exact ratio of two Gaussian steps."""

from dataclasses import dataclass

from sage_grpo.math.loss import clipped, surrogate
from sage_grpo.math.objectives import Ask, Loss, Objective, above_zero, objective


@objective("grpo")
@dataclass(frozen=True, kw_only=True)
class Grpo(Objective):
    r"""$-\min(\rho A,\ \mathrm{clip}(\rho, 1 \pm c)\,A)$."""

    clip: float = 1e-4
    """Ratios count within 1 ± clip. With the mean reduction they differ from 1 by about 1e-5."""

    def __post_init__(self) -> None:
        above_zero(clip=self.clip)

    def loss(self, ask: Ask) -> Loss:
        logs = ask.log_ratio(self.reduction)
        return Loss(surrogate(logs, ask.advantage, self.clip), logs, clipped(logs, ask.advantage, self.clip))
