"""A run of the laboratory that ends when its network passes are spent, with its reward measured on the way."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from research.metrics import metrics_of
from research.run_log import key_of
from research.stale import StaleTrainer
from sage_grpo.config import RecipeConfig, load_recipe
from sage_grpo.core.callback import Callback, Metrics
from sage_grpo.core.loop import Loop
from sage_grpo.training.trainer import Trainer

REFERENCE = "lab-paper"


class PassCounter:
    """A counter of network passes: forward passes times the videos in each.

    A pass with gradient counts three, because its backward pass costs two.
    """

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


class RewardProbe(Callback):
    """A callback that measures the reward of fresh videos at equal intervals of passes, and ends the run at its budget.

    All runs are measured with the sampler of the world's recipe, whatever sampler their rollouts use.
    """

    def __init__(self, counter: PassCounter, run: "BudgetedRun") -> None:
        self.counter, self.run, self.metrics = counter, run, metrics_of(run.world)
        self.reference = load_recipe(self.metrics.recipe)
        self.passes, self.reward = list[int](), list[float]()
        self.on_target: dict[str, Any] | None = None

    def look(self, loop: Loop) -> None:
        with self.counter.paused():
            self.reward.append(self.metrics.reward(loop, self.reference))
        self.passes.append(self.counter.passes)
        target = self.run.target
        if target is not None and self.on_target is None and self.reward[-1] >= target:
            self.on_target = self.evaluate(loop)

    def evaluate(self, loop: Loop) -> dict[str, Any]:
        with self.counter.paused():
            return self.metrics.evaluate(loop, self.reference, self.run.samples)

    def on_start(self, loop: Loop) -> None:
        self.look(loop)

    def on_iteration(self, loop: Loop, metrics: Metrics) -> None:
        spent = self.counter.passes >= self.run.budget
        if spent or self.counter.passes >= len(self.passes) * self.run.budget / self.run.looks:
            self.look(loop)
        if spent:
            loop.stop("its passes are spent")


@dataclass(frozen=True)
class BudgetedRun:
    """A `Run` of the grid: one setting and seed, trained until `budget` network passes are spent.

    `looks` is how often its reward is measured on the way.
    """

    name: str
    overrides: tuple[str, ...]
    seed: int
    budget: int
    looks: int
    samples: int  # fresh videos to evaluate it on; 0 for none
    out: Path
    target: float | None = None  # a reward: it is also evaluated at the first look that sees it
    staleness: int = 0  # iterations between a rollout and its updates
    world: str = "shapes"

    @property
    def config(self) -> RecipeConfig:
        common = [
            f"seed={self.seed}",
            f"run.out={self.out / 'work' / self.key}",
            "run.iterations=100000",
            "run.trackers=[]",
            "run.sample_every=0",
            "run.save_every=1000000",
            "gauge.every=0",
        ]
        return load_recipe(metrics_of(self.world).recipe, [*self.overrides, *common])

    @property
    def key(self) -> str:
        """The name of the run and a digest of all that decides its result, so that a changed setting is run again."""
        settings = load_recipe(metrics_of(self.world).recipe, list(self.overrides))
        more = self.budget, self.looks, self.samples, self.target, self.staleness
        return key_of(f"{self.name}-{self.seed}", settings, *more)

    def _trainer(self, config: RecipeConfig) -> Trainer:
        if not self.staleness:
            return Trainer(config=config, console=Console(quiet=True))
        trainer = StaleTrainer(config=config, console=Console(quiet=True))
        trainer.loop.staleness = self.staleness
        return trainer

    def run(self) -> dict[str, Any]:
        """Train until the passes are spent, and return the network passes and rewards of all looks.

        If `samples` is above 0, the result also has an evaluation at the end (`evaluation`), and one at the first look
        that reached `target` (`on_target`), None if no look did.
        """
        torch.set_num_threads(1)
        began, config = time.process_time(), self.config
        trainer = self._trainer(config)
        watch = RewardProbe(PassCounter(trainer.model.module), self)
        trainer.callbacks.append(watch)
        trainer.train()
        if watch.passes[-1] < self.budget:
            raise RuntimeError(f"{self.key} was stopped after {watch.passes[-1]} of {self.budget} passes")
        result: dict[str, Any] = {
            "name": self.name,
            "seed": self.seed,
            "passes": watch.passes,
            "reward": watch.reward,
            "iterations": trainer.loop.iteration,
            "updates": trainer.loop.updates,
        }
        if self.samples:
            result |= {"on_target": watch.on_target, "evaluation": watch.evaluate(trainer.loop)}
        result["cpu_seconds"] = time.process_time() - began
        shutil.rmtree(config.run.out, ignore_errors=True)
        return result
