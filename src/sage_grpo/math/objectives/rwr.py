"""Flow matching weighed by the advantage: the plainest of all, and a baseline."""

from dataclasses import dataclass
from typing import ClassVar

from sage_grpo.math.matching import likelier, matching_error
from sage_grpo.math.objectives import Ask, Loss, Objective, objective


@objective("rwr")
@dataclass(frozen=True, kw_only=True)
class Rwr(Objective):
    r"""$A\,\ell(v)$. A negative advantage pushes away without end: only the trust region holds it."""

    noised: ClassVar[bool] = True

    def loss(self, ask: Ask) -> Loss:
        value = ask.advantage * matching_error(ask.velocity, ask.noise, ask.clean, self.reduction)
        logs = likelier(ask.velocity, ask.old, ask.noise, ask.clean, self.reduction)
        return Loss.unheld(value, logs)
