"""Rollouts that a policy of some iterations ago made: what a trainer gets whose videos are made elsewhere."""

from collections import deque
from typing import Any, ClassVar

from sage_grpo.core.loop import Lesson, Loop
from sage_grpo.core.update import UpdateResult
from sage_grpo.training.trainer import Trainer


class StaleLoop(Loop):
    """Learns from what was prepared `staleness` iterations before. Until then it learns nothing.

    Nothing is approximated: old velocities are those of the policy that made the videos, asked when it made them.
    """

    staleness = 0

    def __init__(self, *parts: Any, **named: Any) -> None:
        super().__init__(*parts, **named)
        self._waiting = deque[Lesson]()

    @property
    def makes_its_own(self) -> bool:
        return False

    @property
    def asks_old(self) -> bool:
        return self.objective.noised

    def learn(self, lesson: Lesson) -> list[UpdateResult]:
        self._waiting.append(lesson)
        if len(self._waiting) <= self.staleness:
            return []
        return super().learn(self._waiting.popleft())


class StaleTrainer(Trainer):
    """A run of the laboratory, which is never resumed: what waits is not saved."""

    loop: StaleLoop
    loop_type: ClassVar[type[Loop]] = StaleLoop
