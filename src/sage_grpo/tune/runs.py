"""The training runs of a search. Their folders are its whole state, so a search that was killed continues from them."""

import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from threading import Event
from typing import Any

from sage_grpo.config import RecipeConfig, dump_recipe
from sage_grpo.core.passes import forward_passes
from sage_grpo.distributed.launch import ProcessFailure, launch
from sage_grpo.files import atomic_write
from sage_grpo.runs.folder import CHECKPOINTS, RunFolder
from sage_grpo.runs.read import number, read_json
from sage_grpo.training.callbacks import PHASES
from sage_grpo.training.trackers import read_metrics
from sage_grpo.tune import worker
from sage_grpo.tune.halving import tail_mean


class Stopped(Exception):
    """Raised to end a run early because the whole search ends; the run saves first."""


@dataclass
class CandidateRun:
    """The training run of one candidate, up to the iteration that it has reached."""

    name: str
    config: RecipeConfig
    folder: Path
    failure: str | None = None

    @cached_property
    def passes_of_iteration(self) -> float:
        return forward_passes(self.config)

    @property
    def files(self) -> RunFolder:
        return RunFolder(self.folder)

    def rows(self) -> list[dict[str, Any]]:
        return read_metrics(self.files.log) if self.files.log.exists() else []

    def ended(self, iterations: int) -> bool:
        """Return whether the run has ended, and at least `iterations` iterations are done and saved.

        The log alone does not show this: a killed run may have logged an iteration that it did not save.
        """
        return len(self.rows()) >= iterations and self.files.end.exists()

    def reward(self, iterations: int) -> float:
        """Return the reward that the run had reached after `iterations` iterations; NaN if it has not done so many."""
        rewards = [number(row.get("reward/mean")) for row in self.rows()[:iterations]]
        return tail_mean(rewards) if len(rewards) >= iterations else math.nan

    def seconds_per_pass(self) -> float:
        """Return the median seconds per forward pass. The first iteration does not count, because it warms up."""
        seconds = [sum(number(row.get(f"seconds/{phase}")) for phase in PHASES) for row in self.rows()[1:]]
        return median(seconds) / self.passes_of_iteration

    def advance(self, iterations: int, stop: Event, lock: int, devices: Mapping[str, str] | None = None) -> None:
        """Train the run, from wherever it is, until `iterations` iterations are done.

        If the run fails, the reason is stored in `failure`, and only this run ends.

        Args:
            iterations: Number of iterations, including those that are done already.
            stop: An event that, when it is set, makes the run save and end.
            lock: Descriptor of the search's lock, which the processes of the run keep open.
            devices: Environment variables that choose the run's GPUs; None changes nothing.

        Raises:
            Stopped: `stop` was set.
        """
        if self.ended(iterations):
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = {"out": str(self.folder), "iterations": iterations, "keep": 1}
        run = self.config.run.model_copy(update=settings | {"resume": "auto", "checkpoints": None, "trackers": ()})
        atomic_write(self.folder / worker.RECIPE, dump_recipe(self.config.model_copy(update={"run": run})).encode())

        def look() -> None:
            if stop.is_set():
                raise Stopped

        arguments = [str(self.folder), str(os.getpid())]
        count = self.config.parallel.processes
        try:
            launch(count, worker.__name__, arguments, self.folder, look, environment=devices, files=[lock])
        except ProcessFailure as failure:
            self.failure = str(failure)
        if self.failure is None and (done := len(self.rows())) < iterations:
            reason = (read_json(self.files.end) or {}).get("stop_reason")
            self.failure = f"stopped after {done} of {iterations} iterations: {reason or 'nothing says why'}"

    def forget_weights(self) -> None:
        """Delete the checkpoints of a run that has dropped out, because they would fill the disk. Its log stays."""
        shutil.rmtree(self.folder / CHECKPOINTS, ignore_errors=True)
