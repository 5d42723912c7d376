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
    """The planned operations of an iteration on all devices, and the peak speed of one device."""

    flops: float
    """Floating-point operations of an iteration, without recomputation."""
    peak: float
    """FLOPs per second of one device, as its maker states them."""


@dataclass(frozen=True)
class Past:
    """The times of a run's earlier parts that its goodput needs."""

    began: float
    """When the first part began, as `time.time()`."""
    finished: float = 0.0
    """Seconds in the phases of logged iterations. Those that a resume repeats are no longer in the log."""


def past_of(files: RunFolder) -> Past:
    """Return the past of a run, read from the environment files and the log in its folder.

    Read it once both are in place for the current part. A part killed before that leaves no past.
    """
    starts = [moment(json.loads(path.read_text()).get("started")) for path in files.parts(ENVIRONMENT)]
    rows = read_metrics(files.log) if files.log.exists() else []
    finished = sum(row.get(f"seconds/{phase}") or 0.0 for row in rows for phase in PHASES)
    return Past(min([time.time(), *starts]), finished)


def lateness(seconds: Tensor) -> tuple[float, int]:
    """Return how many seconds the slowest process takes beyond the median, and its rank. `seconds` is (P,), by rank."""
    slowest = int(seconds.argmax())
    return float(seconds[slowest] - seconds.median()), slowest


class Throughput(Callback):
    """A callback that adds `speed/…` to the metrics of an iteration, with one small message between hosts.

    It must be placed before the log. `work` is called after each iteration until it returns a plan. Planning takes a
    minute, and a run does not wait for it.
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
        """Return the rows (P, N) of all processes, each with N numbers."""
        row = torch.tensor(mine, dtype=torch.float64)
        return self.processes.everyone(row) if self.processes else row[None]
