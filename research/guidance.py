"""`python -m research guidance`: the base model and runs of recipe `lab`, evaluated with guidance 1, 2 and 4."""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from research.grid import run_grid
from research.run_log import key_of
from sage_grpo.config import RecipeConfig, load_recipe
from sage_grpo.files import atomic_write
from sage_grpo.lab.generator import LabModel
from sage_grpo.lab.shapes.evaluate import evaluate
from sage_grpo.lab.shapes.world import all_prompts, kept_out
from sage_grpo.runs.folder import RunFolder
from sage_grpo.statistics import mcnemar, share_by_group
from sage_grpo.training.build import build_model
from sage_grpo.training.callbacks import averaged
from sage_grpo.training.trackers import read_metrics
from sage_grpo.training.trainer import Trainer

SCALES = (1, 2, 4)
BASE = "base"


@dataclass(frozen=True)
class Judged:
    """A `Run` of the grid: the base model, or recipe `lab` with one seed, evaluated at every guidance scale."""

    seed: int | None  # none for the base
    samples: int
    out: Path

    @property
    def name(self) -> str:
        return BASE if self.seed is None else f"lab-{self.seed}"

    @property
    def config(self) -> RecipeConfig:
        settings = [f"seed={self.seed or 0}", f"run.out={self.out / 'work' / self.name}", "run.sample_every=0"]
        return load_recipe("lab", [*settings, "run.trackers=[]"])

    @property
    def key(self) -> str:
        return key_of(self.name, load_recipe("lab", [f"seed={self.seed or 0}"]), self.samples, *SCALES)

    def run(self) -> dict[str, Any]:
        torch.set_num_threads(1)
        started, config = time.perf_counter(), self.config
        result: dict[str, Any] = {"name": self.name, "recipe": "lab", "seed": self.seed}
        if self.seed is None:
            result["guidance"] = judged(build_model(config), config, self.samples)
        else:
            trainer = Trainer(config=config, console=Console(quiet=True))
            trainer.train()
            result["train_seconds"] = time.perf_counter() - started
            result["reward"] = [row["reward/mean"] for row in read_metrics(RunFolder(Path(config.run.out)).log)]
            with averaged(trainer.loop):
                result["guidance"] = judged(trainer.loop.model, config, self.samples)
            shutil.rmtree(config.run.out)
        return result | {"seconds": time.perf_counter() - started}


def judged(model: Any, config: RecipeConfig, samples: int) -> dict[str, dict[str, Any]]:
    """Evaluate a model on `samples` fresh videos at every guidance scale, and return its measures by scale.

    `followed` is a text with a 1 for each video that follows its prompt and a 0 for each other, and `flawed` one for
    those that flicker or halt. The other measures are means over videos.
    """
    assert isinstance(model, LabModel)
    found, own = {}, model.guidance_scale
    for scale in SCALES:
        model.guidance_scale = float(scale)
        videos = evaluate(model, config, samples)
        found[str(scale)] = {
            "followed": "".join(str(int(right)) for right in videos.accuracy),
            "flawed": "".join(str(int(flaw)) for flaw in videos.flawed),
            "distance": videos.distance.mean().item(),
            "diversity": videos.diversity,
        }
    model.guidance_scale = own
    return found


def as_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table with one row per model and guidance scale, the base first.

    Diversity is relative to that of the base at the same scale. Each of `rows` has the results of one model.
    """
    head = ["model", "guidance", "followed", "held-out prompts", "became right, wrong"]
    head += ["flicker or halt", "distance", "diversity"]
    table = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    base = rows[0]["guidance"]
    for row in rows:
        for scale, found in row["guidance"].items():
            right, before = flags(found), flags(base[scale])
            changes = mcnemar(before, right)
            cells = [
                "base" if row["seed"] is None else f"`lab`, seed {row['seed']}",
                scale,
                percent(of_videos(right)),
                percent(of_videos(right, kept_out_only=True)),
                "" if row["seed"] is None else f"{changes.gained}, {changes.lost}",
                percent(of_videos(flags(found, "flawed"))),
                f"{found['distance']:.3f}",
                f"{found['diversity'] / base[scale]['diversity']:.2f}",
            ]
            table.append(f"| {' | '.join(cells)} |")
    return "\n".join(table) + "\n"


def flags(found: dict[str, Any], name: str = "followed") -> list[bool]:
    """Return for each video whether it follows its prompt (or is flawed), from the measures of one guidance scale."""
    return [mark == "1" for mark in found[name]]


def of_videos(flags: Sequence[bool], *, kept_out_only: bool = False) -> tuple[float, float, float]:
    """Return the share of an evaluation's videos, whose prompts come in turn, with its interval over prompts.

    `flags` may be those of several evaluations in a row.
    """
    texts = all_prompts()
    prompts = [i % len(texts) for i in range(len(flags))]
    rows = [i for i, n in enumerate(prompts) if kept_out(texts[n]) or not kept_out_only]
    return share_by_group([flags[i] for i in rows], [prompts[i] for i in rows])


def percent(found: tuple[float, float, float]) -> str:
    mean, low, high = (100 * value for value in found)
    return f"{mean:.0f}\u00a0% [{low:.0f}, {high:.0f}]"


def guidance(
    out: Path, *, seeds: int, samples: int, workers: int | None = None, console: Console | None = None
) -> list[dict[str, Any]]:
    """Evaluate the base model and one run per seed at every guidance scale. Return one result per model, base first.

    Results and table.txt are written into `out`. If the process is killed, call the function again: it continues.
    """
    jobs = [Judged(seed, samples, out) for seed in (None, *range(seeds))]
    rows = run_grid(jobs, out, workers, console)
    atomic_write(out / "table.txt", as_markdown(rows).encode())
    return rows
