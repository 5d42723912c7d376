"""Which videos of an iteration are trained on: packed into batches like the rollout's, as many on every rank."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sage_grpo.core.protocols import Comm
from sage_grpo.core.rollout import Point, Trajectory

Part = tuple[Trajectory, Tensor, Tensor]  # with advantages and weights of its videos


def has_signal(advantage: Tensor) -> Tensor:
    """Which groups (rows) tell a better video from a worse one."""
    return advantage.abs().amax(1) >= 1e-6


def best_and_worst(advantage: Tensor, used: Tensor, count: int | None) -> Tensor:
    """The `count` best and worst videos of each group (row) among those that are used; all, if none is given."""
    if count is None:
        return used
    order = torch.where(used, advantage, torch.nan).argsort(1)  # NaN comes last
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(order.shape[1]).expand_as(order))
    return used & ((rank < count) | (rank >= used.sum(1, keepdim=True) - count))


def rows_of(path: Trajectory, rows: list[int]) -> Trajectory:
    """Plain numbers: a condition may have parts on the host."""
    points = {step: point.rows(rows) for step, point in path.points.items()}
    condition = {name: value[rows] for name, value in path.condition.items()}
    return Trajectory(path.table, condition, points, path.x0[rows], path.circumstances)


def joined(paths: Sequence[Trajectory]) -> Trajectory:
    """Trajectories of one table and one shape of condition."""
    first = paths[0]
    points = {step: Point.joined([path.points[step] for path in paths]) for step in first.points}
    condition = {name: torch.cat([path.condition[name] for path in paths]) for name in first.condition}
    return Trajectory(first.table, condition, points, torch.cat([p.x0 for p in paths]), first.circumstances)


def packed(parts: Sequence[Part], comm: Comm) -> list[Part]:
    """Without the videos of weight 0, in batches of the same size: replay then computes what the rollout did.

    What is missing in a batch is filled with videos of weight 0. A rank that has fewer batches than another repeats
    one with weight 0: weights that are shared out are gathered by all ranks together.
    """
    size = len(parts[0][0].x0)
    kept: dict[tuple[object, ...], list[Part]] = {}
    for path, advantage, weight in parts:
        alike = (tuple(path.points), *(tuple(value.shape[1:]) for value in path.condition.values()))
        rows = weight.nonzero().flatten().tolist()
        if len(rows):
            whole = len(rows) == size
            part = (path, advantage, weight) if whole else (rows_of(path, rows), advantage[rows], weight[rows])
            kept.setdefault(alike, []).append(part)
    out = [batch for alike in kept.values() for batch in _batches(alike, size)]
    most = int(comm.gather(torch.tensor([len(out)])).max())
    path, advantage, weight = (out or parts)[0]
    return out + [(path, advantage, torch.zeros_like(weight))] * (most - len(out))


def _batches(parts: Sequence[Part], size: int) -> list[Part]:
    whole = [part for part in parts if len(part[0].x0) == size]
    rest = [part for part in parts if len(part[0].x0) < size]
    if not rest:
        return whole
    path = joined([part[0] for part in rest])
    advantage, weight = torch.cat([part[1] for part in rest]), torch.cat([part[2] for part in rest])
    for first in range(0, len(weight), size):
        there = list(range(first, min(first + size, len(weight))))
        rows = there + [first] * (size - len(there))
        counted = weight[rows]
        counted[len(there) :] = 0
        whole.append((rows_of(path, rows), advantage[rows], counted))
    return whole
