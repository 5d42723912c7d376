"""A run of recipe `lab` with changes, at one of two widths, evaluated with guidance on fresh videos."""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from research.guidance import flags
from research.metrics import FIRST_SEED
from research.run_log import key_of
from sage_grpo.config import RecipeConfig, load_recipe
from sage_grpo.core.callback import Callback, Metrics
from sage_grpo.core.loop import Loop
from sage_grpo.core.passes import forward_passes
from sage_grpo.lab.shapes.evaluate import Evaluation, evaluate, evaluate_run
from sage_grpo.training.build import build_model
from sage_grpo.training.callbacks import averaged
from sage_grpo.training.trainer import Trainer

WIDTHS: dict[int, tuple[str, ...]] = {96: (), 48: ("model.path=research/bases/shapes-48",)}
PROBES = 96  # fresh videos of a look at a run on its way


@dataclass(frozen=True)
class LabRun:
    """A `Run` of the grid: recipe `lab` at one width and in one setting; the untrained base if `seed` is None.

    With `looks`, the model is also evaluated so many times on the way, at equal distances.
    """

    width: int
    setting: str
    overrides: tuple[str, ...]
    seed: int | None
    samples: int
    out: Path
    looks: int = 0

    @property
    def name(self) -> str:
        return f"base-{self.width}" if self.seed is None else f"{self.setting}-{self.width}-{self.seed}"

    def recipe(self, *more: str) -> RecipeConfig:
        return load_recipe("lab", [*WIDTHS[self.width], *self.overrides, f"seed={self.seed or 0}", *more])

    @property
    def iterations(self) -> int:
        """Iterations at the cost of recipe `lab`, in passes of the network, with the same number of sampling steps."""
        own = self.recipe()
        given = load_recipe("lab", [f"sampling.steps={own.sampling.steps}"])
        return round(given.run.iterations * forward_passes(given, 2) / forward_passes(own, 2))

    @property
    def key(self) -> str:
        more = [self.looks] if self.looks else []
        return key_of(self.name, self.recipe(f"run.iterations={self.iterations}"), self.samples, *more)

    def run(self) -> dict[str, Any]:
        torch.set_num_threads(1)
        started = time.process_time()
        work = ["run.sample_every=0", "run.trackers=[]", "run.save_every=1000000", "gauge.every=0"]
        config = self.recipe(f"run.iterations={self.iterations}", f"run.out={self.out / 'work' / self.name}", *work)
        facts = {"width": self.width, "setting": self.setting, "seed": self.seed}
        if self.seed is None:
            return facts | measures(evaluate(build_model(config), config, self.samples))
        shutil.rmtree(
            config.run.out, ignore_errors=True
        )  # a killed run begins again: its looks are not in a checkpoint
        trainer = Trainer(config=config, console=Console(quiet=True))
        curve = Looks(self.looks, config)
        trainer.callbacks.append(curve)
        trainer.train()
        if trainer.loop.iteration < config.run.iterations:
            raise RuntimeError(f"{self.name} was stopped at iteration {trainer.loop.iteration}")
        passes = forward_passes(config, 2) * config.run.iterations
        found = measures(evaluate_run(trainer.loop, config, self.samples))
        if self.looks:
            found["curve"] = curve.rows
        shutil.rmtree(config.run.out)
        return facts | {"passes": passes, "cpu_seconds": time.process_time() - started} | found


class Looks(Callback):
    """A callback that evaluates the model `looks` times on the way: [iteration, share of prompts followed, reward]."""

    def __init__(self, looks: int, config: RecipeConfig) -> None:
        self.looks, self.config, self.rows = looks, config, list[list[float]]()

    def on_start(self, loop: Loop) -> None:
        if self.looks:
            self.look(loop)

    def on_iteration(self, loop: Loop, metrics: Metrics) -> None:
        if self.looks and loop.iteration * self.looks >= len(self.rows) * self.config.run.iterations:
            self.look(loop)

    def look(self, loop: Loop) -> None:
        with averaged(loop):
            found = evaluate(loop.model, self.config, PROBES, FIRST_SEED)
        reward = found.reward(weights(self.config)).mean().item()
        self.rows.append([loop.iteration, found.accuracy.mean().item(), reward])


def weights(config: RecipeConfig) -> list[float]:
    """Return the weights of VQ, MQ and TA in a recipe's reward."""
    (reward,) = config.rewards
    assert isinstance(reward.weights, dict)
    return [float(reward.weights.get(name, 0)) for name in ("VQ", "MQ", "TA")]


def measures(videos: Evaluation) -> dict[str, Any]:
    """Return the measures of an evaluation by name; `followed` and `flawed` have a 0 or 1 for each video."""
    return {
        "followed": "".join(str(int(right)) for right in videos.accuracy),
        "flawed": "".join(str(int(flaw)) for flaw in videos.flawed),
        "distance": videos.distance.mean().item(),
        "diversity": videos.diversity,
    }


def value(row: dict[str, Any], name: str) -> float:
    """Return a measure of one model as one number; shares of videos from 0 to 1."""
    return sum(flags(row, name)) / len(row[name]) if name in ("followed", "flawed") else float(row[name])


def chosen(rows: Sequence[dict[str, Any]], setting: str, width: int) -> dict[int, dict[str, Any]]:
    """Return the trained rows of a setting at a width, by seed."""
    return {
        row["seed"]: row
        for row in rows
        if (row["width"], row["setting"]) == (width, setting) and row["seed"] is not None
    }
