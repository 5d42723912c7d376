"""The selection of an iteration's videos to train on, and their packing into batches of the rollout's size."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sage_grpo.core.comm import Comm
from sage_grpo.core.rollout import Point, Trajectory


@dataclass(frozen=True)
class TrainBatch:
    """A batch of videos to train on, with their trajectories, advantages and weights."""

    trajectory: Trajectory
    """Latents (B, …) of the videos, and the points at which the policy is trained."""
    advantage: Tensor
    """Advantage of each video (B,)."""
    weight: Tensor
    """Weight of each video (B,) in the loss: 1, or 0 if the video is not selected or only fills up the batch."""
    steps: Sequence[int] = ()
    """Keys in `trajectory.points` of the points that an update trains on, in order."""

    def rows(self, rows: list[int]) -> "TrainBatch":
        """Return the batch with only some of its videos, given by their indices."""
        return replace(
            self, trajectory=rows_of(self.trajectory, rows), advantage=self.advantage[rows], weight=self.weight[rows]
        )


def has_signal(advantage: Tensor) -> Tensor:
    """Return a mask (P,) of the groups that have an advantage other than 0, up to rounding, from advantages (P, G).

    A group without such an advantage does not show which of its videos are better.
    """
    return advantage.abs().amax(1) >= 1e-6


def best_and_worst(advantage: Tensor, used: Tensor, count: int | None) -> Tensor:
    """Return a mask (P, G) of the `count` best and the `count` worst videos of each group.

    Args:
        advantage: Advantages (P, G): one row per group, one column per video.
        used: Mask (P, G), boolean: the videos that may be chosen.
        count: Number of best videos, and of worst ones, per group; None chooses all of `used`.
    """
    if count is None:
        return used
    order = torch.where(used, advantage, torch.nan).argsort(1)  # NaN comes last
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(order.shape[1]).expand_as(order))
    return used & ((rank < count) | (rank >= used.sum(1, keepdim=True) - count))


def rows_of(path: Trajectory, rows: list[int]) -> Trajectory:
    """Return the trajectory with only some videos of the batch, given by their indices."""
    # plain numbers: a condition may have parts on the host
    points = {step: point.rows(rows) for step, point in path.points.items()}
    condition = {name: value[rows] for name, value in path.condition.items()}
    return Trajectory(path.table, condition, points, path.x0[rows], path.forward_settings)


def concatenate(batches: Sequence[TrainBatch]) -> TrainBatch:
    """Join several batches into one. Batches must have the same table, and conditions of the same shape."""
    paths = [batch.trajectory for batch in batches]
    first = paths[0]
    points = {step: Point.concatenate([path.points[step] for path in paths]) for step in first.points}
    condition = {name: torch.cat([path.condition[name] for path in paths]) for name in first.condition}
    path = Trajectory(first.table, condition, points, torch.cat([p.x0 for p in paths]), first.forward_settings)
    return TrainBatch(path, torch.cat([b.advantage for b in batches]), torch.cat([b.weight for b in batches]))


def pack(batches: Sequence[TrainBatch], comm: Comm) -> list[TrainBatch]:
    """Leave out the videos of weight 0, and return the others in batches of the rollout's size.

    With batches of equal size, a replay computes what the rollout did. Videos of weight 0 fill up a batch that is too
    small. A rank with fewer batches than another adds a batch of weight 0, because FSDP's all-gathers are collective:
    all ranks must run the same number of forward passes.
    """
    size = len(batches[0].weight)
    kept: dict[tuple[object, ...], list[TrainBatch]] = {}
    for batch in batches:
        path = batch.trajectory
        alike = (tuple(path.points), *(tuple(value.shape[1:]) for value in path.condition.values()))
        rows = batch.weight.nonzero().flatten().tolist()
        if len(rows):
            kept.setdefault(alike, []).append(batch if len(rows) == size else batch.rows(rows))
    out = [batch for alike in kept.values() for batch in _refill(alike, size)]
    most = int(comm.gather(torch.tensor([len(out)])).max())
    spare = (out or batches)[0]
    return out + [replace(spare, weight=torch.zeros_like(spare.weight))] * (most - len(out))


def _refill(batches: Sequence[TrainBatch], size: int) -> list[TrainBatch]:
    """Return all videos in batches of `size`; repeated videos of weight 0 fill up the last one."""
    full = [batch for batch in batches if len(batch.weight) == size]
    rest = [batch for batch in batches if len(batch.weight) < size]
    if not rest:
        return full
    together = concatenate(rest)
    for first in range(0, len(together.weight), size):
        there = list(range(first, min(first + size, len(together.weight))))
        batch = together.rows(there + [first] * (size - len(there)))
        batch.weight[len(there) :] = 0
        full.append(batch)
    return full
