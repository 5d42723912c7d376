"""A speed test of every process's device before a run: a matrix product, and a message to the next process."""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch
import torch.distributed as dist
from rich.console import Console

from sage_grpo.distributed.device import HOST, median_seconds
from sage_grpo.distributed.processes import Processes

ON_GPU, ON_HOST = (8192, 256 * 2**20), (384, 4 * 2**20)  # rows of the matrices, bytes of a message
SLOW = 0.8  # of the median of all processes: a training step waits for the slowest


@dataclass(frozen=True)
class Speed:
    """The measured speed of one process's device and of its link."""

    rank: int
    host: str
    local_rank: int
    tflops: float
    """TFLOP/s of a product of square matrices, in bfloat16 on a GPU and float32 on a CPU."""
    gigabytes: float | None
    """GB/s received from the process with the rank before; None if the run has a single process."""

    @property
    def place(self) -> str:
        """Where the device is, as text: rank, number of the GPU, and name of the host."""
        return f"rank {self.rank} (GPU {self.local_rank} of {self.host})"


def measure_speeds(processes: Processes | None, device: torch.device) -> list[Speed]:
    """Measure the devices and links of all processes at the same time, and return one `Speed` per process by rank.

    Every process must call this function. Each sends a message to the next rank, so a slow link lowers the speed of the
    rank that receives.
    """
    on_host = device.type == HOST.type
    size, message = ON_HOST if on_host else ON_GPU
    x = torch.ones(size, size, dtype=torch.float32 if on_host else torch.bfloat16, device=device)
    tflops = 2 * size**3 / median_seconds(lambda: x @ x, device) / 1e12
    host, local = socket.gethostname(), int(os.environ.get("LOCAL_RANK", "0"))
    if processes is None:
        return [Speed(0, host, local, tflops, None)]
    sent = torch.ones(message, dtype=torch.uint8, device=device)
    received, rank, world = torch.empty_like(sent), processes.global_rank, processes.global_world

    def exchange() -> None:
        to_next = dist.P2POp(dist.isend, sent, (rank + 1) % world)
        from_last = dist.P2POp(dist.irecv, received, (rank - 1) % world)
        for work in dist.batch_isend_irecv([to_next, from_last]):
            work.wait()

    gigabytes = message / median_seconds(exchange, device) / 1e9
    return processes.everybody(Speed(rank, host, local, tflops, gigabytes))


def slow_devices(speeds: Sequence[Speed]) -> list[str]:
    """Return a sentence for each device, and each link, whose speed is below 80 % of the median."""
    found = []
    usual = median(speed.tflops for speed in speeds)
    for speed in speeds:
        if speed.tflops < SLOW * usual:
            found.append(
                f"{speed.place} multiplies matrices at {speed.tflops:.3g} TFLOP/s, the median is {usual:.3g}; "
                "look for heat, a power limit or another program on it (nvidia-smi)"
            )
    links = [speed.gigabytes for speed in speeds if speed.gigabytes is not None]
    for speed in speeds:
        if speed.gigabytes is not None and speed.gigabytes < SLOW * median(links):
            found.append(
                f"{speed.place} receives {speed.gigabytes:.3g} GB/s from the process before it, the median is "
                f"{median(links):.3g}; look for a broken link or a slow node"
            )
    return found


def check_gpus(processes: Processes | None, device: torch.device, console: Console, *, report: bool) -> list[Speed]:
    """Return the speed of every process's device. With `report`, print a summary and a sentence about each slow one."""
    speeds = measure_speeds(processes, device)
    if report:
        slow = slow_devices(speeds)
        usual = f"{median(speed.tflops for speed in speeds):.3g} TFLOP/s in the median"
        console.print(f"devices: {len(speeds)} checked, {usual}, {len(slow)} slow", highlight=False)
        for sentence in slow:
            console.print(f"[yellow]slow:[/] {sentence}", highlight=False)
    return speeds
