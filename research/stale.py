"""Training on rollouts that the policy made some iterations ago, as if other machines made the videos."""

from collections import deque
from typing import Any, ClassVar

from torch import Tensor

from sage_grpo.core.loop import Loop
from sage_grpo.core.rollout import Trajectory
from sage_grpo.core.selection import TrainBatch
from sage_grpo.training.trainer import Trainer


class StaleLoop(Loop):
    """A loop that trains on the rollout of `staleness` iterations ago, and on nothing until there is one.

    Nothing is approximated: the old velocities are computed when the policy makes the videos, not when it trains on
    them.
    """

    staleness = 0

    def __init__(self, *parts: Any, **named: Any) -> None:
        super().__init__(*parts, **named)
        self._waiting = deque[tuple[list[TrainBatch], int]]()

    @property
    def on_policy(self) -> bool:
        return False

    @property
    def needs_old_velocity(self) -> bool:
        return self.objective.renoised

    def prepare(self, paths: list[Trajectory], advantage: Tensor, used: Tensor) -> tuple[list[TrainBatch], int]:
        self._waiting.append(super().prepare(paths, advantage, used))
        return self._waiting.popleft() if len(self._waiting) > self.staleness else ([], 0)


class StaleTrainer(Trainer):
    """A trainer with a `StaleLoop`. It never resumes a run, because rollouts that wait for training are not saved."""

    loop: StaleLoop
    loop_type: ClassVar[type[Loop]] = StaleLoop
