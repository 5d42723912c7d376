"""Metrics of how well a run uses its machines: MFU, goodput, peak memory, and the slowest process of each phase.

MFU is the share of the devices' peak speed that useful operations reach. Goodput is the share of the time since the
start that was spent in iterations which the run kept.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sage_grpo.core.callback import Callback, Metrics
from sage_grpo.core.loop import Loop
from sage_grpo.distributed.device import peak_memory
from sage_grpo.distributed.processes import Processes
from sage_grpo.runs.folder import ENVIRONMENT, RunFolder
from sage_grpo.runs.read import moment
from sage_grpo.training.callbacks import PHASES, Log
from sage_grpo.training.trackers import read_metrics


@dataclass(frozen=True)
class Work:
    """The planned operations of an iteration on all devices, and the peak speed of one device."""

    flops: float
    """Floating-point operations of one iteration on all devices, without those of recomputed activations."""
    peak: float
    """Floating-point operations per second of one device, as its maker states them."""


@dataclass(frozen=True)
class Past:
    """When a resumed run first began, and how long its earlier parts worked. The goodput is computed from both."""

    began: float
    """When the first part of the run began, in seconds since 1970."""
    finished: float = 0.0
    """Seconds in the phases of all logged iterations. Those that a resume repeats have been removed from the log."""


def past_of(files: RunFolder) -> Past:
    """Return when a run first began and how long it worked, read from the environment files and the log in its folder.

    Call this function after both have been written or opened for the current start of the run. They then no longer have
    entries of a start that was killed before its first checkpoint.
    """
    starts = [moment(json.loads(path.read_text()).get("started")) for path in files.parts(ENVIRONMENT)]
    rows = read_metrics(files.log) if files.log.exists() else []
    finished = sum(row.get(f"seconds/{phase}") or 0.0 for row in rows for phase in PHASES)
    return Past(min([time.time(), *starts]), finished)


def lateness(seconds: Tensor) -> tuple[float, int]:
    """Return how many seconds the slowest process takes longer than the median, and the rank of the slowest process.

    `seconds` (P,) has the time of each rank.
    """
    slowest = int(seconds.argmax())
    return float(seconds[slowest] - seconds.median()), slowest


class Throughput(Callback):
    """A callback that adds metrics of speed to those of an iteration, as `speed/…`.

    They are the goodput, the MFU, the peak memory in bytes, and by how many seconds the slowest process of each phase
    is late. Processes exchange one small message per iteration. The callback must be placed before the log, which
    writes the metrics. `work` is called after each iteration until it returns the planned work in place of None,
    because planning takes a minute and the run does not wait.
    """

    def __init__(
        self,
        log: Log,
        processes: Processes | None,
        past: Past | None = None,
        work: Callable[[], Work | None] | None = None,
    ) -> None:
        self.log, self.processes, self.work = log, processes, work
        self.past = past or Past(time.time())
        self.finished = self.past.finished
        self.planned: Work | None = None
        self.ended = time.perf_counter()

    def on_start(self, loop: Loop) -> None:
        self.ended = time.perf_counter()

    def on_iteration(self, loop: Loop, metrics: Metrics) -> None:
        device = next(loop.model.module.parameters()).device
        phases = [self.log.seconds.get(f"seconds/{phase}", 0.0) for phase in PHASES]
        rows = self._everyone([*phases, peak_memory(device)])
        now = time.perf_counter()
        whole, self.ended = now - self.ended, now
        self.finished += sum(phases)
        metrics["speed/goodput"] = min(self.finished / max(time.time() - self.past.began, self.finished), 1.0)
        if (peak := float(rows[:, -1].max())) > 0:
            metrics["speed/peak_memory"] = peak
        if len(rows) > 1:
            for phase, seconds in zip(PHASES, rows.T[:-1], strict=True):
                late, rank = lateness(seconds)
                metrics |= {f"speed/late/{phase}": late, f"speed/late_rank/{phase}": float(rank)}
        if self.planned is None and self.work is not None:
            self.planned = self.work()
        if self.planned is not None:
            metrics["speed/mfu"] = self.planned.flops / (whole * len(rows) * self.planned.peak)

    def _everyone(self, mine: Sequence[float]) -> Tensor:
        """Return the N values in `mine` of all processes, as (P, N) in rank order."""
        row = torch.tensor(mine, dtype=torch.float64)
        return self.processes.everyone(row) if self.processes else row[None]
