"""What every process of a large layout would hold and write, worked out from how the first one cuts its tensors."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from sage_grpo.config import RecipeConfig
from sage_grpo.core.windows import my_samples
from sage_grpo.distributed.fake_group import pretend
from sage_grpo.distributed.processes import Processes
from sage_grpo.distributed.shard import local
from sage_grpo.preflight.plan.layout import Contents, contents
from sage_grpo.training import build

META = torch.device("meta")
OTHER_FILES = 3  # DCP's index, state.json and the manifest


class PlanError(ValueError):
    """The checkpoint of this layout would not be whole."""


class Alike(NamedTuple):
    """Tensors that are cut alike: one of them stands for all, on every process and in DCP's plan."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    placements: tuple[object, ...] | None  # none: whole on every process


@dataclass(frozen=True)
class Shares:
    """Bytes of something, whole and by global rank."""

    whole: int
    by_rank: tuple[int, ...]


@dataclass(frozen=True)
class LayoutPlan:
    mesh: dict[str, int]
    held: dict[str, Shares]  # by kind: weights, gradients …
    samples: tuple[range, ...]  # which of an iteration's rollouts, by global rank
    written: Shares  # payload of one checkpoint
    files: int

    def groups(self, size: int) -> tuple[int, int]:
        """Groups of `size` rollouts that a process has a part of, and replicas that have a part of one group."""
        parts = {(samples.start, i // size) for samples in self.samples for i in samples}
        by_replica, by_group = (Counter(part[axis] for part in parts) for axis in (0, 1))
        return max(by_replica.values()), max(by_group.values())


def plan_layout(
    fill: Callable[[Processes], Contents],
    rollouts: int,
    processes: int,
    sequence: int = 1,
    replicate: int = 1,
    planner: Callable[[], DefaultSavePlanner] = DefaultSavePlanner,
) -> LayoutPlan:
    """`fill` builds what the first process holds; the others are worked out from how that was cut."""
    with pretend(processes, sequence, replicate) as first:
        contents = fill(first)
        held = {kind: Counter(map(_alike, tensors)) for kind, tensors in contents.held.items()}
        saved = Counter(map(_alike, contents.saved.values()))
    named = {str(i): alike for i, alike in enumerate(saved)}
    samples, plans, sizes = [], [], []
    for rank in range(processes):
        with pretend(processes, sequence, replicate, rank) as other:
            samples.append(my_samples(rollouts, other.num_replicas, other.replica))
            parts = {
                alike: _stand_in(alike, other.weights_mesh)
                for alike in {*saved, *(a for c in held.values() for a in c)}
            }
            sizes.append({alike: _bytes(local(part)) for alike, part in parts.items()})
            local_planner = planner()
            local_planner.set_up_planner({name: parts[alike] for name, alike in named.items()}, is_coordinator=not rank)
            plans.append(local_planner.create_local_plan())
    whole, _ = planner().create_global_plan(plans)
    check_whole(whole, named)
    written = _written(plans, {name: saved[alike] for name, alike in named.items()})
    return LayoutPlan(
        {"replicate": replicate, "shard": processes // (replicate * sequence), "sequence": sequence},
        {kind: _shares(count, sizes) for kind, count in held.items()},
        tuple(samples),
        Shares(sum(_whole_bytes(alike) * n for alike, n in saved.items()), written),
        sum(1 for n in written if n) + OTHER_FILES,
    )


def check_whole(plans: Iterable[SavePlan], names: Mapping[str, Alike]) -> None:
    """Every row of every tensor is written by exactly one process."""
    rows: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for item in (item for plan in plans for item in plan.items):
        if _item_bytes(item):
            (start, *_), (count, *columns) = _chunk(item)
            if tuple(columns) != names[item.index.fqn].shape[1:]:
                raise PlanError(f"{names[item.index.fqn].shape} is not cut along its first axis")
            rows[item.index.fqn].append((start, count))
    for name, alike in names.items():
        end = 0
        for start, count in sorted(rows[name]):
            if start != end:
                what = "written twice" if start < end else "written by nobody"
                raise PlanError(f"rows {min(start, end)} to {max(start, end)} of {alike.shape} are {what}")
            end += count
        if end != (alike.shape[0] if alike.shape else 1):
            raise PlanError(f"rows from {end} on of {alike.shape} are written by nobody")


def _written(plans: list[SavePlan], count: Mapping[str, int]) -> tuple[int, ...]:
    """Bytes by rank. DCP gives what several hold to whoever has least so far, which shares it out evenly."""
    owners: dict[object, list[int]] = defaultdict(list)
    size: dict[object, int] = {}
    for rank, plan in enumerate(plans):
        for item in plan.items:
            owners[item.index].append(rank)
            size[item.index] = _item_bytes(item)
    written = [0] * len(plans)
    for index, ranks in owners.items():
        n = count[index.fqn]  # type: ignore[attr-defined]
        for place, rank in enumerate(ranks):
            written[rank] += size[index] * (n * (place + 1) // len(ranks) - n * place // len(ranks))
    return tuple(written)


def _alike(x: Tensor) -> Alike:
    return Alike(tuple(x.shape), x.dtype, x.placements if isinstance(x, DTensor) else None)


def _stand_in(alike: Alike, mesh: DeviceMesh) -> Tensor:
    whole = torch.empty(alike.shape, dtype=alike.dtype, device=META)
    if alike.placements is None:
        return whole
    shape, _ = compute_local_shape_and_global_offset(whole.shape, mesh, alike.placements)  # type: ignore[arg-type]
    part = torch.empty(shape, dtype=alike.dtype, device=META)
    return DTensor.from_local(
        part,
        mesh,
        alike.placements,
        run_check=False,
        shape=whole.shape,
        stride=whole.stride(),  # type: ignore[arg-type]
    )


def _shares(count: Mapping[Alike, int], sizes: list[dict[Alike, int]]) -> Shares:
    by_rank = tuple(sum(size[alike] * n for alike, n in count.items()) for size in sizes)
    return Shares(sum(_whole_bytes(alike) * n for alike, n in count.items()), by_rank)


def _bytes(x: Tensor) -> int:
    return x.numel() * x.element_size()


def _whole_bytes(alike: Alike) -> int:
    return _bytes(torch.empty(alike.shape, dtype=alike.dtype, device=META))


def _chunk(item: WriteItem) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Where a part begins and how large it is; a number is a row of its own."""
    assert item.tensor_data
    return tuple(item.tensor_data.chunk.offsets) or (0,), tuple(item.tensor_data.chunk.sizes) or (1,)


def _item_bytes(item: WriteItem) -> int:
    assert item.tensor_data  # its `tensor_storage_size` is that of the whole tensor
    return math.prod(_chunk(item)[1]) * item.tensor_data.properties.dtype.itemsize


@dataclass(frozen=True)
class RecipePlan:
    parameters: int  # of the networks, without adapters
    trained: int
    layout: LayoutPlan


def plan_recipe(config: RecipeConfig) -> RecipePlan:
    """Of all processes."""
    layout, model = config.parallel, build.outline_model(config)
    parameters = sum(w.numel() for name, w in model.module.named_parameters() if ".lora_" not in name)
    trained = sum(w.numel() for w in model.module.parameters() if w.requires_grad)
    sizes = (layout.processes, layout.sequence, layout.replicate)
    plan = plan_layout(lambda processes: contents(model, config, processes), config.rollouts, *sizes)
    return RecipePlan(parameters, trained, plan)


def bytes_held(module: nn.Module) -> int:
    """Of parameters on this process."""
    return sum(local(p).numel() * p.element_size() for p in module.parameters())
