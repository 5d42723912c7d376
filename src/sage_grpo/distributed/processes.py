"""The processes that share a run: their ranks, their layout, and the few messages between them."""

import os
import sys
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.rendezvous import rendezvous

from sage_grpo.config import ConfigError
from sage_grpo.core.video_model import networks, whole
from sage_grpo.distributed.device import HOST, backend_for, choose_device
from sage_grpo.distributed.hang import record_collectives
from sage_grpo.distributed.ulysses import RING, ULYSSES, SequenceParallel

REPLICATE, SHARD = "replicate", "shard"


def launched() -> int:
    """Return how many processes the launcher (torchrun, SLURM, Kubernetes) started; 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def launched_rank() -> int:
    return int(os.environ.get("RANK", "0"))


class Processes:
    """The `Comm` of several processes: the place of this process in their layout, and the messages between them."""

    def __init__(self, mesh: DeviceMesh, device: torch.device) -> None:
        self.mesh, self.device = mesh, device
        self.data = mesh[REPLICATE, SHARD]._flatten("data")
        # Weights are sharded over data and sequence together, and copied along `replicate` if there are copies.
        sharded = mesh[SHARD, RING, ULYSSES]._flatten("weights")
        self.weights_mesh = mesh[REPLICATE, "weights"] if mesh.size(0) > 1 else sharded
        shared = mesh[RING, ULYSSES]._flatten("sequence")
        self.sp = SequenceParallel(mesh, shared, device) if shared.size() > 1 else None  # between those of one video
        self.replica, self.num_replicas = self.data.get_local_rank(), self.data.size()
        self.sp_rank, self.sp_size = shared.get_local_rank(), shared.size()
        self.global_rank, self.global_world = dist.get_rank(), dist.get_world_size()
        self.main = self.global_rank == 0  # the one that writes files and talks to people

    def sum_sp(self, x: Tensor) -> Tensor:
        if self.sp is None:
            return x
        total = x.to(self.device, copy=True)
        dist.all_reduce(total, group=self.sp.group)
        return total.to(x.device)

    def gather(self, x: Tensor) -> Tensor:
        """Return the `x` (B, …) of all replicas, concatenated to (num_replicas · B, …) in the order of replicas.

        The result is equal on all processes, and is on the device of `x`.
        """
        mine = x.to(self.device).contiguous()
        parts = [torch.empty_like(mine) for _ in range(self.num_replicas)]
        dist.all_gather(parts, mine, group=self.data.get_group())
        return self._agreed(torch.cat(parts)).to(x.device)

    def mean(self, x: Tensor) -> Tensor:
        total = x.to(self.device, copy=True)
        dist.all_reduce(total, group=self.data.get_group())  # a sum: gloo knows no mean
        return self._agreed(total / self.num_replicas).to(x.device)

    def broadcast(self, x: Tensor, replica: int) -> Tensor:
        """Return the `x` that replica number `replica` passes, on the device of this process.

        Every replica must make this call, with an `x` of the same shape. The given `x` is not changed.
        """
        found = x.to(self.device, copy=True).contiguous()
        dist.broadcast(found, group=self.data.get_group(), group_src=replica)
        return found

    def _agreed(self, x: Tensor) -> Tensor:
        """Overwrite `x` with the `x` of the first process that shares the video, and return it.

        Otherwise these processes could disagree, because a scorer need not return the same scores twice.
        """
        if self.sp:
            dist.broadcast(x, group=self.sp.group, group_src=0)
        return x

    def set_last_backward(self, module: nn.Module, *, last: bool) -> None:
        """Declare whether the next backward pass is the last one of an update (`last`).

        Gradients are summed over the copies of the weights in that pass only, because once per update is enough. The
        experts of a mixture take turns, and the last pass may not use all of them. So their gradients are summed in
        every pass.
        """
        parts = networks(module)
        for part in parts.values():
            if isinstance(part, FSDPModule):
                part.set_requires_all_reduce(last or len(parts) > 1)

    def clip_grad_norm(self, parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
        return whole(torch.nn.utils.clip_grad_norm_(parameters, limit))

    def everyone(self, x: Tensor) -> Tensor:
        """Return the `x` of all P processes, stacked in rank order to (P, …).

        `x` must be on the CPU, so that no process waits for its GPU.
        """
        rows = [torch.zeros_like(x) for _ in range(self.global_world)]
        dist.all_gather(rows, x)
        return torch.stack(rows)

    def everybody(self, value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
        """Return a list with the `value` of every process, in rank order. Values are pickled, so they must be small."""
        values: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(values, value, group=group)
        return values

    def another_group(self) -> dist.ProcessGroup:
        """Return a new process group of all processes, for work besides training. Every process must make this call."""
        group: dist.ProcessGroup = dist.new_group(backend=backend_for(HOST))
        return group


def join(
    processes: int, sequence: int, replicate: int, device: str = "auto", *, ring: int = 1, minutes: float = 30.0
) -> Processes | None:
    """Connect to the other processes of the run, and return all of them in their layout; None for a single process.

    Args:
        processes: Number of processes that the recipe wants.
        sequence: Number of processes that share a video.
        replicate: Number of copies of the weights, each sharded over an equal part of the processes.
        device: Name of the device, as in `choose_device`.
        ring: Number of processes in a ring, among those that share a video.
        minutes: Time limit of a message between processes.

    Raises:
        ConfigError: The launcher started a number of processes other than `processes`.
    """
    started = launched()
    if started != processes:
        raise ConfigError(
            f"parallel.processes={processes}, but {started} {'was' if started == 1 else 'were'} started; use "
            f"`torchrun --nproc-per-node={min(processes, 8)}"
            + (f" --nnodes={processes // 8}" if processes > 8 else "")
            + f" -m sage_grpo train …` or parallel.processes={started}"
        )
    if processes == 1:
        return None
    chosen = choose_device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if not dist.is_initialized():
        limit, rank = timedelta(minutes=minutes), int(os.environ["RANK"])
        store = meeting_place(next(rendezvous("env://", timeout=limit))[0], rank, processes, limit)
        record_collectives()
        dist.init_process_group(backend_for(chosen), store=store, rank=rank, world_size=processes, timeout=limit)
    return lay_out(processes, sequence, replicate, chosen, ring)


def lay_out(processes: int, sequence: int, replicate: int, device: torch.device, ring: int = 1) -> Processes:
    """Return the processes, laid out in copies of the weights, shards of each copy, and groups that share a video.

    The process group must exist already. The numbers are those of `join`.
    """
    shape = (replicate, processes // (replicate * sequence), ring, sequence // ring)
    return Processes(init_device_mesh(device.type, shape, mesh_dim_names=(REPLICATE, SHARD, RING, ULYSSES)), device)


def meeting_place(store: Store, rank: int, world: int, limit: timedelta) -> Store:
    """Return a part of the launcher's key-value store that only the processes of this start use.

    torchrun keeps its store when it restarts processes, with everything that dead processes wrote, and its count of
    restarts differs between nodes. So rank 0 opens a part under a random name. Every other rank sends rank 0 a random
    name of its own, and knows that rank 0 is alive when that name is sent back.

    Raises:
        TimeoutError: Rank 0 does not answer within `limit`.
    """
    store.set_timeout(limit)
    mine = uuid4().hex
    if rank == 0:
        store.set("leader", mine)
        for other in range(1, world):
            store.set(f"{mine}/welcome {other}", store.get(f"{mine}/{other}").decode())
        return PrefixStore(mine, store)
    deadline = time.monotonic() + limit.total_seconds()
    while time.monotonic() < deadline:
        leader = store.get("leader").decode()
        store.set(f"{leader}/{rank}", mine)
        welcome = f"{leader}/welcome {rank}"
        if store.check([welcome]) and store.get(welcome).decode() == mine:
            return PrefixStore(leader, store)
        time.sleep(0.1)
    raise TimeoutError(f"process {rank} met no others within {limit.total_seconds() / 60:.0f} minutes of its start")


def leave() -> None:
    """Wait for the other processes, close the process group and exit. Return if there is no process group.

    The exit skips the usual shutdown of Python, in which threads of gloo abort some processes.
    """
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
