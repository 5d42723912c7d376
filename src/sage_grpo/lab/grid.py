"""The experiments behind docs/claims.md, and how they are run: in parallel, one file a run, resumable."""

import json
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from sage_grpo.config import RecipeConfig, load_recipe
from sage_grpo.files import atomic_write
from sage_grpo.lab.shapes.evaluate import SETTING_B, Evaluation, evaluate, evaluate_run
from sage_grpo.runs.folder import RunFolder
from sage_grpo.training.build import build_model
from sage_grpo.training.trackers import read_metrics
from sage_grpo.training.trainer import Trainer

KERNELS = ("dance", "flow", "sage", "cps", "precise")  # measured directly
TRAINED = ("flow", "sage", "cps", "precise")
MATCHED = ("flow", "cps")  # also run at sage's exploration, see `measure.match_exploration`
NO_KL = ["kl.anchor=none", "kl.beta_velocity=0"]


def experiments(matched: Mapping[str, float]) -> dict[str, list[str]]:
    """Name → what differs from the recipe `lab-paper`; `matched` has the η of equal exploration."""
    grid: dict[str, list[str]] = {}
    for name in TRAINED:
        grid[f"kernel-{name}"] = [f"sampling.kernel={name}"]
        grid[f"kernel-{name}-unequal"] = [f"sampling.kernel={name}", "policy.equalizer=false"]
    for name, eta in matched.items():
        grid[f"matched-{name}"] = [f"sampling.kernel={name}", f"sampling.eta={eta}"]
    grid["noisy-end-sage"] = ["sampling.last_step=kernel"]
    grid["kl-none"] = NO_KL
    grid["kl-fixed"] = ["kl.anchor=fixed", "kl.beta_velocity=0"]
    grid["kl-step"] = ["kl.anchor=none", "kl.beta_velocity=1"]
    grid["kl-moving"] = ["kl.anchor=moving", "kl.beta_velocity=0"]
    grid["lambda-two-stage"] = ["kl.warmup=40", "kl.low=0.005"]
    for sign in ("lagrangian", "paper"):
        grid[f"lambda-{sign}"] = [f"kl.feedback={sign}", "kl.low=0.005", "kl.high=5", "kl.target=3e-6", "kl.warmup=0"]
    # paid for motion alone, held by nothing: the way to hack it is to show less
    only_motion = "rewards=[{type: shapes, weights: {VQ: 0, MQ: 1, TA: 0}}]"
    grid["hacking"] = [*NO_KL, "optimizer.lr=3e-4", only_motion]
    grid["best"] = ["@lab-fast"]
    return grid


@dataclass(frozen=True)
class Job:
    name: str
    overrides: tuple[str, ...]
    seed: int
    iterations: int
    samples: int
    out: Path

    @property
    def file(self) -> Path:
        return self.out / "runs" / f"{self.name}-{self.seed}-{self.iterations}.json"


def forwards(config: RecipeConfig) -> int:
    """Forward passes of one iteration, a video: rollout, anchor and trained ones."""
    trained = config.policy.num_iterations * config.trained_steps
    return config.rollouts * (config.sampling.steps + trained * (1 if config.kl.anchor == "none" else 2))


def iterations_of(recipe: str, iterations: int) -> int:
    """As many iterations of a recipe as cost the forward passes of `iterations` of the paper's."""
    return iterations * forwards(load_recipe("lab-paper")) // forwards(load_recipe(recipe))


def config_of(job: Job) -> RecipeConfig:
    recipe = "lab-fast" if "@lab-fast" in job.overrides else "lab-paper"
    folder = job.out / "work" / job.file.stem
    iterations = iterations_of(recipe, job.iterations)
    common = [
        f"seed={job.seed}",
        f"run.out={folder}",
        f"run.iterations={iterations}",
        "run.trackers=[]",
        "run.sample_every=0",
        "run.save_every=1000000",
        "run.resume=auto",
    ]
    return load_recipe(recipe, [*(o for o in job.overrides if o != "@lab-fast"), *common])


def summary(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "reward": evaluation.reward(SETTING_B).tolist(),
        "scores": evaluation.scores.mean(0).tolist(),
        "distance": evaluation.distance.tolist(),
        "accuracy": evaluation.accuracy.mean().item(),
        "shape": evaluation.correct[:, 0].double().mean().item(),
        "diversity": evaluation.diversity,
    }


CURVES = (
    "reward/mean",
    "reward/std",
    "kl_weight",
    "approx_kl",
    "clip_frac",
    "ratio_mean",
    "drift/base_error",
    "drift/diversity",
    "drift/kl_initial",
)


def run_job(job: Job) -> Path:
    """Train, evaluate on fresh seeds, write one JSON file."""
    if job.file.exists():
        return job.file
    torch.set_num_threads(1)
    config = config_of(job)
    trainer = Trainer(config=config, console=Console(quiet=True))
    trainer.train()
    log = read_metrics(RunFolder(Path(config.run.out)).log)
    curves = {key: [[row["step"], row[key]] for row in log if row.get(key) is not None] for key in CURVES}
    result = {
        "name": job.name,
        "seed": job.seed,
        "iterations": job.iterations,
        "curves": curves,
        "evaluation": summary(evaluate_run(trainer.loop, config, job.samples)),
        "alarms": trainer.gauge.alarms,
    }
    atomic_write(job.file, json.dumps(result).encode())
    shutil.rmtree(config.run.out, ignore_errors=True)
    return job.file


def run_base(out: Path, samples: int) -> dict[str, Any]:
    path = out / "runs" / f"base-{samples}.json"
    if not path.exists():
        config = load_recipe("lab-paper")
        atomic_write(path, json.dumps(summary(evaluate(build_model(config), config, samples))).encode())
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def run_grid(jobs: list[Job], workers: int | None = None, console: Console | None = None) -> list[dict[str, Any]]:
    """All jobs in parallel processes; those that an earlier, killed call finished are not run again."""
    console = console or Console()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    todo = [job for job in jobs if not job.file.exists()]
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
            for done in as_completed([pool.submit(run_job, job) for job in todo]):
                progress.update(task, advance=1, description=done.result().stem)
    return [json.loads(job.file.read_text()) for job in jobs]
