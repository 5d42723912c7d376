"""A fake process group, in which a single process runs as one of many, and stand-ins for what FSDP2 and checkpoints
need from the others."""

import importlib
import os
import pkgutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed.fsdp._fully_shard as fully_shard
from torch import Tensor
from torch.distributed.checkpoint import default_planner
from torch.distributed.checkpoint.utils import _DistWrapper
from torch.testing._internal.distributed.fake_pg import FakeStore

from sage_grpo.distributed.device import HOST
from sage_grpo.distributed.processes import Processes, lay_out

FAKE = "fake"  # torch's name for the backend


@contextmanager
def fake_group(processes: int, rank: int = 0) -> Iterator[None]:
    """Open torch's fake process group inside the block: this process has rank `rank` among `processes`.

    The other processes do not exist. Messages to them are lost, and a buffer for a message from them keeps its content.
    """
    dist.init_process_group(FAKE, store=FakeStore(), rank=rank, world_size=processes)
    try:
        yield
    finally:
        dist.destroy_process_group()


class NoopStream:
    """A stand-in for an event or stream of a device. Its methods do nothing and never wait."""

    def __init__(self, **settings: Any) -> None: ...
    def record(self, stream: Any = None) -> None: ...
    def wait(self, stream: Any = None) -> None: ...
    def wait_event(self, event: Any) -> None: ...
    def wait_stream(self, stream: Any) -> None: ...
    def synchronize(self) -> None: ...

    def is_capturing(self) -> bool:
        return False

    def record_event(self, event: Any = None) -> "NoopStream":
        return event or NoopStream()


class FakeStreams:
    """A stand-in for the streams and events of `torch.cuda` that FSDP2 uses. It needs neither a GPU nor a driver."""

    Stream = Event = NoopStream
    stream = staticmethod(nullcontext)

    def current_stream(self, device: Any = None) -> NoopStream:
        return NoopStream()

    def current_device(self) -> int:
        return 0


def sharding_modules() -> list[Any]:
    """Return the modules of FSDP2 that look up a device's streams, where a stand-in for the streams must be put."""
    names = [f"{fully_shard.__name__}.{info.name}" for info in pkgutil.iter_modules(fully_shard.__path__)]
    return [module for module in map(importlib.import_module, names) if hasattr(module, "_get_device_handle")]


@contextmanager
def first_of(processes: int) -> Iterator[None]:
    """Make this process the first of `processes` inside the block, as if a launcher had started all of them.

    The other processes do not exist. Messages from them are replaced by what this process itself would send.
    """
    if processes == 1:
        yield
        return
    launcher = {"WORLD_SIZE": str(processes), "RANK": "0", "LOCAL_RANK": "0"}
    wrap, new_group = _DistWrapper.__init__, dist.new_group
    mean, gather, sum_sp = Processes.mean, Processes.gather, Processes.sum_sp

    def alone(self: Any, group: Any, use_dist: bool, coordinator_rank: int) -> None:
        wrap(self, group, False, coordinator_rank)

    def fake_too(*args: Any, **named: Any) -> Any:
        return new_group(*args, **(named | {"backend": FAKE}))

    def same_mean(self: Processes, x: Tensor) -> Tensor:
        mean(self, x)
        return x

    def same_gather(self: Processes, x: Tensor) -> Tensor:
        gather(self, x)
        return torch.cat([x] * self.num_replicas)

    def same_sum_sp(self: Processes, x: Tensor) -> Tensor:
        sum_sp(self, x)
        own = x[x.flatten(1).any(1)] if x.dim() > 1 else x  # rows that the others fill are 0
        return own.repeat(-(-len(x) // len(own)), *[1] * (x.dim() - 1))[: len(x)] if len(own) else x

    patches = [
        (_DistWrapper, "__init__", alone),  # a checkpoint holds the shards of this process alone …
        (default_planner, "_validate_global_plan", lambda *plan: []),  # … and is therefore not whole
        (dist, "new_group", fake_too),  # a real one would wait for the others
        (Processes, "mean", same_mean),  # small news travels to the device and back, where values are lost:
        (Processes, "gather", same_gather),  # the journey is made, and the values are those of before
        (Processes, "sum_sp", same_sum_sp),
    ]
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, launcher))
        for owner, name, replacement in patches:
            stack.enter_context(mock.patch.object(owner, name, replacement))
        stack.enter_context(fake_group(processes))
        yield


@contextmanager
def pretend(processes: int, sequence: int = 1, replicate: int = 1, rank: int = 0) -> Iterator[Processes]:
    """Yield the processes of a run as the one with rank `rank` would see them. Messages to the others are lost.

    Raises:
        RuntimeError: This process belongs to a process group already.
    """
    if dist.is_initialized():
        raise RuntimeError("a plan needs a process of its own: this one belongs to a run")
    with fake_group(processes, rank):
        yield lay_out(processes, sequence, replicate, HOST)
