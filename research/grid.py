"""The experiments behind docs/claims.md, and a grid that runs the jobs of a study in parallel and can be resumed."""

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from research.run_log import RunLog, key_of
from sage_grpo.config import RecipeConfig, load_recipe
from sage_grpo.lab.shapes.evaluate import SETTING_B, Evaluation, evaluate, evaluate_run
from sage_grpo.runs.folder import RunFolder
from sage_grpo.training.build import build_model
from sage_grpo.training.trackers import read_metrics
from sage_grpo.training.trainer import Trainer

KERNELS = ("dance", "flow", "sage", "cps", "precise")  # measured directly
TRAINED = ("flow", "sage", "cps", "precise")
# Kernels that are also run at the exploration of another. `cps` never explores as far as `sage` does, whatever its η,
# so there `sage` is held back.
MATCHED = {"flow": "sage", "sage": "cps"}
RATES = (1e-4, 3e-4, 1e-3)  # learning rates, against these prompts an iteration, of `GENERATIONS` videos each
PROMPTS, GENERATIONS = (4, 16), 8
TARGET = 1e-4  # of the KL, for the feedback on λ
NO_KL = ["kl.anchor=none", "kl.old_weight=0"]


@dataclass(frozen=True)
class Experiment:
    """An experiment: a recipe with overrides.

    With `equal_cost`, it has as many iterations as cost the same number of passes as a run of `lab-paper`.
    """

    overrides: tuple[str, ...] = ()
    recipe: str = "lab-paper"
    equal_cost: bool = False

    def config(self, seed: int, iterations: int, folder: Path) -> RecipeConfig:
        """Return the recipe of one run with this seed, which writes into `folder`.

        `iterations` is the number for `lab-paper`. An experiment of equal cost gets another number.
        """
        own = load_recipe(self.recipe, list(self.overrides))
        if self.equal_cost:
            iterations = max(1, iterations * cost(load_recipe("lab-paper")) // cost(own))
        common = [
            f"seed={seed}",
            f"run.out={folder}",
            f"run.iterations={iterations}",
            "run.trackers=[]",
            "run.sample_every=0",
            "run.save_every=1000000",
            "run.resume=auto",
        ]
        return load_recipe(self.recipe, [*self.overrides, *common])


def experiments(matched: Mapping[str, float]) -> dict[str, Experiment]:
    """Return the experiments of the paper's claims by name.

    `matched` has for each kernel in `MATCHED` the η at which it explores as far as its counterpart there.
    """
    grid: dict[str, Experiment] = {}

    def vary(name: str, *overrides: str, equal_cost: bool = False) -> None:
        grid[name] = Experiment(overrides, equal_cost=equal_cost)

    for name in TRAINED:
        vary(f"kernel-{name}", f"sampling.kernel={name}")
        vary(f"kernel-{name}-unequal", f"sampling.kernel={name}", "policy.equalizer=false")
    for name, eta in matched.items():
        vary(f"matched-{name}", f"sampling.kernel={name}", f"sampling.eta={eta}")
    vary("noisy-end-sage", "sampling.last_step=kernel")
    vary("kl-none", *NO_KL)
    vary("kl-fixed", "kl.anchor=fixed", "kl.old_weight=0")
    vary("kl-step", "kl.anchor=none", "kl.old_weight=1")
    vary("kl-moving", "kl.anchor=moving", "kl.old_weight=0")
    vary("lambda-two-stage", "kl.warmup=40", "kl.low=0.005")
    for sign in ("lagrangian", "paper"):
        vary(f"lambda-{sign}", f"kl.feedback={sign}", "kl.low=0.005", "kl.high=5", f"kl.target={TARGET}", "kl.warmup=0")
    for lr in RATES:
        for prompts in PROMPTS:
            at_once = f"policy.batch_size={min(64, prompts * GENERATIONS)}"
            asked = f"policy.prompts_per_iteration={prompts}"
            vary(size_name(lr, prompts), f"optimizer.lr={lr}", asked, at_once, equal_cost=True)
    # paid for clean colours alone, and held by nothing: what they show does not matter any more
    only_looks = "rewards=[{type: shapes-first, weights: {VQ: 1, MQ: 0, TA: 0}}]"
    vary("hacking", *NO_KL, "optimizer.lr=6e-4", only_looks)
    grid["best"] = Experiment(recipe="lab-fast", equal_cost=True)
    return grid


def size_name(lr: float, prompts: int) -> str:
    return f"lr-{lr:g}-videos-{prompts * GENERATIONS}"


CURVES = (
    "reward/mean",
    "reward/std",
    "kl_weight",
    "kl/penalty",
    "clip_frac",
    "ratio_mean",
    "drift/base_error",
    "drift/diversity",
    "drift/kl_initial",
)


@dataclass(frozen=True)
class Job:
    name: str
    experiment: Experiment
    seed: int
    iterations: int
    samples: int
    out: Path

    @property
    def key(self) -> str:
        """Name of the job and a digest of all that decides its result, so that a changed experiment is run again."""
        settings = self.experiment.config(self.seed, self.iterations, Path("any"))
        return key_of(f"{self.name}-{self.seed}", settings, self.samples)

    @property
    def config(self) -> RecipeConfig:
        return self.experiment.config(self.seed, self.iterations, self.out / "work" / self.key)

    def run(self) -> dict[str, Any]:
        """Train, and return the run's curves over iterations, its alarms and its evaluation on fresh videos."""
        torch.set_num_threads(1)
        began, config = time.process_time(), self.config
        trainer = Trainer(config=config, console=Console(quiet=True))
        trainer.train()
        log = read_metrics(RunFolder(Path(config.run.out)).log)
        curves = {key: [[row["step"], row[key]] for row in log if row.get(key) is not None] for key in CURVES}
        result = {
            "name": self.name,
            "seed": self.seed,
            "iterations": self.iterations,
            "curves": curves,
            "evaluation": summary(evaluate_run(trainer.loop, config, self.samples)),
            "alarms": trainer.gauge.alarms,
            "cpu_seconds": time.process_time() - began,
        }
        shutil.rmtree(config.run.out, ignore_errors=True)
        return result


def cost(config: RecipeConfig) -> int:
    """Return the cost of an iteration: forward passes times videos, where a backward pass counts as two.

    First steps that rollouts share, and updates without the anchor, are not deducted.
    """
    trained = config.policy.num_iterations * config.trained_steps
    return config.rollouts * (config.sampling.steps + trained * (3 if config.kl.anchor == "none" else 4))


def summary(evaluation: Evaluation) -> dict[str, Any]:
    """Return the measures of an evaluation by name, each as a mean over videos."""
    return {
        "reward": evaluation.reward(SETTING_B).mean().item(),
        "scores": evaluation.scores.mean(0).tolist(),
        "distance": evaluation.distance.mean().item(),
        "accuracy": evaluation.accuracy.mean().item(),
        "shape": evaluation.correct[:, 0].double().mean().item(),
        "diversity": evaluation.diversity,
    }


@dataclass(frozen=True)
class Base:
    """A `Run` of the grid that evaluates the base model, before any training."""

    samples: int

    @property
    def key(self) -> str:
        return key_of("base", self.config, self.samples)

    @property
    def config(self) -> RecipeConfig:
        return load_recipe("lab-paper")

    def run(self) -> dict[str, Any]:
        config = self.config
        return summary(evaluate(build_model(config), config, self.samples))


class Run(Protocol):
    """A job of a grid: work that returns a result, and the key under which this is kept."""

    @property
    def key(self) -> str:
        """The key under which the result is kept."""
        ...

    def run(self) -> dict[str, Any]:
        """Do the work, in a process of its own, and return its result."""
        ...


def _run(job: Run) -> tuple[str, dict[str, Any]]:
    return job.key, job.run()


def run_grid(
    jobs: Sequence[Run], out: Path, workers: int | None = None, console: Console | None = None
) -> list[dict[str, Any]]:
    """Run all jobs in parallel processes, and return their results in the order of `jobs`.

    Results are kept in `out`/runs.jsonl. Jobs that an earlier, killed call finished are read from this file. `workers`
    is the number of processes; None for one per core.
    """
    console = console or Console()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    run_log = RunLog(out / "runs.jsonl")
    done = run_log.read()
    todo = [job for job in jobs if job.key not in done]
    columns = (
        TextColumn("experiments"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} {task.description}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(jobs), completed=len(jobs) - len(todo))
        with ProcessPoolExecutor(workers or os.cpu_count(), mp_context=get_context("spawn")) as pool:
            try:
                for ended in as_completed([pool.submit(_run, job) for job in todo]):
                    key, result = ended.result()
                    run_log.add(key, result)
                    progress.update(task, advance=1, description=key)
            except BaseException:
                pool.shutdown(cancel_futures=True)  # what failed is reported now, not after all the others
                raise
    done = run_log.read()
    return [done[job.key] for job in jobs]
