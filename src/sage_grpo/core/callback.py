"""Observers of a run, and what they are shown: rollouts, scores, results of updates, metrics."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from sage_grpo.core.protocols import Prompt, Videos
from sage_grpo.core.rollout import Trajectory
from sage_grpo.core.scores import Scores
from sage_grpo.core.update import UpdateResult
from sage_grpo.suggest import did_you_mean

if TYPE_CHECKING:
    from sage_grpo.core.loop import Loop

Metrics = dict[str, float]


@dataclass
class Rollouts:
    """The rollouts of one iteration on this replica: one prompt per video, trajectories and videos in batches."""

    prompts: list[Prompt]
    trajectories: list[Trajectory] = field(default_factory=list)
    videos: list[Videos] = field(default_factory=list)
    """The videos that this process decoded, in batches. Processes that share a video each decode a part of the
    replica's videos."""
    scores: list[tuple[slice, Callable[[], Scores]]] = field(default_factory=list)
    """For each batch submitted for scoring: the slice of its rows in `prompts`, and a function that waits for its
    scores."""
    dealt: int = 0
    """Number of videos assigned for decoding so far, to this process or to processes that share its videos."""


class Callback:
    """The base class of observers of a run, for logging, gauges and saving, of which the core has none.

    Override the `on_…` methods of the events that you need.
    """

    def __init_subclass__(cls) -> None:
        for name in vars(cls):
            if name.startswith("on_") and not hasattr(Callback, name):
                raise TypeError(f"{cls.__name__}.{name}: there is no such event; {did_you_mean(name, vars(Callback))}")

    def on_start(self, loop: "Loop") -> None:
        """React to the start of a run, new or resumed, before its first iteration."""

    def on_scores(self, loop: "Loop", scores: Scores) -> None:
        """React to the scores of one batch of this process's videos."""

    def on_rollout(self, loop: "Loop", rollouts: Rollouts, scores: Tensor, valid: Tensor) -> None:
        """React to the end of a rollout, when all its videos are made and scored.

        Args:
            loop: The training loop that calls this method.
            rollouts: The rollouts of this replica.
            scores: Scores (N, R) of the videos of all ranks: one row per video, one column per score.
            valid: Mask (N, R), boolean: which scores are valid.
        """

    def on_update(self, loop: "Loop", result: UpdateResult) -> None:
        """React to an optimizer update.

        If the loss or the gradient was not finite, `result.stepped` is False and the weights are unchanged.
        """

    def on_iteration(self, loop: "Loop", metrics: Metrics) -> None:
        """React to the end of an iteration. Entries added to `metrics` are logged by callbacks that come later."""

    def on_end(self, loop: "Loop") -> None:
        """React to the end of a run: after its last iteration or a call of `stop`, but not after an error."""
