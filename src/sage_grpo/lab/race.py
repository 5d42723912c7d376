"""Reward against passes of the network: one run of the laboratory, measured on its way."""

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from sage_grpo.config import RecipeConfig, load_recipe
from sage_grpo.core.loop import Callback, Loop, Metrics
from sage_grpo.files import atomic_write
from sage_grpo.lab.grid import summary
from sage_grpo.lab.shapes.evaluate import FIRST_SEED, evaluate, evaluate_run
from sage_grpo.training.callbacks import averaged
from sage_grpo.training.trainer import Trainer

REFERENCE = "lab-paper"
WATCHED = 192  # fresh videos, the same for all runs, that are looked at on the way
MEASURED = ("reward", "accuracy", "distance", "diversity")


class PassCounter:
    """Videos times passes, as the network sees them; one with gradient counts three, for its backward pass is two."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.passes, self._off = 0, False
        module.register_forward_pre_hook(self._count)

    def _count(self, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if not self._off:
            self.passes += len(inputs[0]) * (3 if torch.is_grad_enabled() else 1)

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._off = True
        try:
            yield
        finally:
            self._off = False


class Watch(Callback):
    """Looks at fresh videos every so many passes, and ends the run when its budget is spent.

    All runs are looked at through the sampler of the reference, whatever their rollouts use.
    """

    def __init__(self, counter: PassCounter, budget: int, looks: int) -> None:
        self.counter, self.budget, self.looks, self.reference = counter, budget, looks, load_recipe(REFERENCE)
        self.passes = list[int]()
        self.seen: dict[str, list[float]] = {name: [] for name in MEASURED}

    def look(self, loop: Loop) -> None:
        with self.counter.paused(), averaged(loop):
            found = summary(evaluate(loop.model, self.reference, WATCHED, first_seed=2 * FIRST_SEED))
        self.passes.append(self.counter.passes)
        for name, values in self.seen.items():
            values.append(float(np.mean(found[name])))

    def on_start(self, loop: Loop) -> None:
        self.look(loop)

    def on_iteration(self, loop: Loop, metrics: Metrics) -> None:
        spent = self.counter.passes >= self.budget
        if spent or self.counter.passes >= len(self.passes) * self.budget / self.looks:
            self.look(loop)
        if spent:
            loop.stop("its passes are spent")


@dataclass(frozen=True)
class Race:
    """A setting and a seed, run until a number of passes is spent."""

    name: str
    overrides: tuple[str, ...]
    seed: int
    budget: int
    looks: int
    samples: int  # fresh videos to evaluate its end on; 0 for none
    out: Path

    @property
    def config(self) -> RecipeConfig:
        common = [
            f"seed={self.seed}",
            f"run.out={self.out / 'work' / self.file.stem}",
            "run.iterations=100000",
            "run.trackers=[]",
            "run.sample_every=0",
            "run.save_every=1000000",
            "gauge.every=0",
        ]
        return load_recipe(REFERENCE, [*self.overrides, *common])

    @property
    def file(self) -> Path:
        """Named after all that decides its result, so that a changed setting is run again."""
        settings = load_recipe(REFERENCE, list(self.overrides)).model_dump_json()
        digest = blake2b(f"{settings} {self.budget} {self.looks} {self.samples}".encode(), digest_size=4).hexdigest()
        return self.out / "runs" / f"{self.name}-{self.seed}-{digest}.json"

    def run(self) -> Path:
        """Train, look on the way, evaluate at the end, write one JSON file."""
        if self.file.exists():
            return self.file
        torch.set_num_threads(1)
        began, config = time.process_time(), self.config
        trainer = Trainer(config=config, console=Console(quiet=True))
        watch = Watch(PassCounter(trainer.model.module), self.budget, self.looks)
        trainer.callbacks.append(watch)
        trainer.train()
        result: dict[str, Any] = {
            "name": self.name,
            "seed": self.seed,
            "passes": watch.passes,
            **watch.seen,
            "iterations": trainer.loop.iteration,
            "updates": trainer.loop.updates,
        }
        if self.samples:
            with watch.counter.paused():
                result["evaluation"] = summary(evaluate_run(trainer.loop, watch.reference, self.samples))
        result["cpu_seconds"] = time.process_time() - began
        atomic_write(self.file, json.dumps(result).encode())
        shutil.rmtree(config.run.out, ignore_errors=True)
        return self.file
