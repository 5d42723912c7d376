"""How well a run uses its machines: MFU, goodput, peak memory, and the slowest process of each phase."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sage_grpo.core.loop import Callback, Loop, Metrics
from sage_grpo.distributed.device import peak_memory
from sage_grpo.distributed.processes import Processes
from sage_grpo.runs.folder import ENVIRONMENT, RunFolder
from sage_grpo.runs.read import moment
from sage_grpo.training.callbacks import PHASES, Log
from sage_grpo.training.trackers import read_metrics


@dataclass(frozen=True)
class Work:
    """What an iteration computes on all devices, and what one device could: both as planned."""

    flops: float
    """Operations of an iteration, without recomputation."""
    peak: float
    """FLOPs a second of one device, by its maker."""


@dataclass(frozen=True)
class Past:
    """What earlier parts of a run leave for its goodput."""

    began: float
    """When its first part began, as `time.time()`."""
    finished: float = 0.0
    """Seconds of the phases of iterations that are still part of the run."""


def past_of(files: RunFolder) -> Past:
    """Read the past from a run folder whose log and environment are in place; a kill before both leaves none."""
    starts = [moment(json.loads(path.read_text()).get("started")) for path in files.parts(ENVIRONMENT)]
    rows = read_metrics(files.log) if files.log.exists() else []
    finished = sum(row.get(f"seconds/{phase}") or 0.0 for row in rows for phase in PHASES)
    return Past(min([time.time(), *starts]), finished)


def lateness(seconds: Tensor) -> tuple[float, int]:
    """Return how many seconds the slowest process takes beyond the median of all (P,), and which one it is."""
    slowest = int(seconds.argmax())
    return float(seconds[slowest] - seconds.median()), slowest


class Throughput(Callback):
    """Adds `speed/…` to the metrics of an iteration, by one small message between hosts. Placed before the log.

    `work` is asked until it answers: a plan takes a minute, and a run does not wait for it.
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
        """Rows of all processes (P, N)."""
        row = torch.tensor(mine, dtype=torch.float64)
        return self.processes.everyone(row) if self.processes else row[None]
