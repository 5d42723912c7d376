"""Flow matching weighted by the advantage: the plainest objective, and a baseline."""

from dataclasses import dataclass
from typing import ClassVar

from sage_grpo.math.matching import matching_error, matching_log_ratio
from sage_grpo.math.objectives import Loss, LossInputs, Objective, objective


@objective("rwr")
@dataclass(frozen=True, kw_only=True)
class Rwr(Objective):
    r"""The loss $A\,\ell(v)$: the matching error, weighted by the advantage.

    A negative advantage pushes the policy away without limit: only the trust region holds it back.
    """

    renoised: ClassVar[bool] = True

    def loss(self, inputs: LossInputs) -> Loss:
        value = inputs.advantage * matching_error(inputs.velocity, inputs.noise, inputs.clean, self.reduction)
        logs = matching_log_ratio(inputs.velocity, inputs.old, inputs.noise, inputs.clean, self.reduction)
        return Loss.unclipped(value, logs)
