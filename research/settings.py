"""`python -m research settings`: what runs look like if a setting that matters is too low or too high.

The learning rates are those that `sage-grpo tune` tries by default, so its choice can be compared with whole runs of
all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from research.grid import Experiment, Job, run_grid
from sage_grpo.config import RecipeConfig, load_recipe
from sage_grpo.core.passes import forward_passes
from sage_grpo.drawing import drawn, in_order
from sage_grpo.files import write_json
from sage_grpo.statistics import effect
from sage_grpo.tune.candidates import AROUND
from sage_grpo.tune.halving import best, rungs, search, tail_mean

RECIPE = "lab-paper-fast"
KEPT = ("reward/mean", "reward/std", "kl/penalty", "drift/base_error", "drift/diversity")
MEASURED = ("reward", "accuracy", "distance", "diversity")
SMOOTH = 12  # iterations that a point of a curve is the mean of


@dataclass(frozen=True)
class Setting:
    """One setting with its values to try, from too low to too high.

    `along` has further overrides for each value, and `under` those for all values.
    """

    key: str
    title: str
    values: tuple[float, ...]
    along: tuple[tuple[str, ...], ...] = ()
    under: tuple[str, ...] = ()  # what all values go along with
    suffix: str = ""  # tells it from the same setting under other conditions
    drawn: tuple[int, ...] = ()  # places of the values that the figure shows; none for all

    @property
    def name(self) -> str:
        return self.key + self.suffix

    def overrides(self, place: int) -> tuple[str, ...]:
        """Return the overrides for value number `place`.

        They are empty for the recipe's own value, so that all settings share one run of the recipe.
        """
        changed = (*self.under, f"{self.key}={self.values[place]:g}", *(self.along[place] if self.along else ()))
        return () if load_recipe(RECIPE, list(changed)) == load_recipe(RECIPE) else changed


def _around(rate: float) -> tuple[float, ...]:
    return tuple(float(f"{rate * factor:.2g}") for factor in AROUND)


BASE = load_recipe(RECIPE)
RATE = Setting("optimizer.lr", "Learning rate", _around(BASE.optimizer.lr), drawn=(0, 2, 4, 6, 8))
SETTINGS = (
    RATE,
    Setting(
        "policy.prompts_per_iteration",
        "Prompts an iteration, of eight videos each",
        (1, 4, 16),
        (("policy.batch_size=4",), (), ()),
    ),
    Setting("kl.high", "Weight of the KL", (0.005, 0.5, 50)),
    Setting("sampling.eta", "Exploration η", (0.1, 0.7, 1.5)),
    Setting("policy.num_iterations", "Updates of a rollout", (1, 4, 16)),
    Setting(
        "optimizer.lr",
        "Learning rate of LoRA, rank 8",
        (1.5e-4, 5e-4, 1.5e-3, 5e-3, 1.5e-2),
        under=("tuning.mode=lora", "tuning.rank=8"),
        suffix="-lora",
        drawn=(0, 1, 2, 3),  # the last one breaks the model, and would leave no room for the others
    ),
)


def iterations_of(config: RecipeConfig, of_base: int) -> int:
    """Return how many iterations of `config` make as many network passes as `of_base` iterations of `RECIPE`."""
    return max(2, round(of_base * forward_passes(BASE) / forward_passes(config)))


@dataclass(frozen=True)
class SettingRun:
    """A `Run` of the grid: one value of a setting, on one seed."""

    overrides: tuple[str, ...]
    seed: int
    iterations: int  # of the recipe; others make as many passes
    samples: int
    out: Path

    @property
    def job(self) -> Job:
        iterations = iterations_of(load_recipe(RECIPE, list(self.overrides)), self.iterations)
        experiment = Experiment(self.overrides, recipe=RECIPE)
        return Job(
            self.overrides[0] if self.overrides else "base", experiment, self.seed, iterations, self.samples, self.out
        )

    @property
    def key(self) -> str:
        return self.job.key

    def run(self) -> dict[str, Any]:
        result = self.job.run()
        curves = {key: [value for _, value in points] for key, points in result["curves"].items() if key in KEPT}
        return result | {"curves": curves, "alarms": len(result["alarms"])}


def choice(runs: dict[str, Sequence[float]]) -> str:
    """Return the name of the run that successive halving would choose.

    `runs` has the reward of every iteration of whole runs, by name.
    """
    length = min(len(rewards) for rewards in runs.values())
    ladder = rungs(len(runs), length)
    done = search(ladder, list(runs), lambda names, rung: {n: tail_mean(runs[n][: round(rung.passes)]) for n in names})
    return best(done[-1], 1)[0]


def settings(
    out: Path,
    *,
    seeds: int = 3,
    iterations: int | None = None,
    samples: int = 240,
    workers: int | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Run every value of every setting on all seeds, and write results.json and figures into `out`.

    Return the results. They include the choice of `tune` and the best of the whole grid, for each seed. `iterations` is
    None for that of the recipe.
    """
    values = {(setting.name, i): setting.overrides(i) for setting in SETTINGS for i in range(len(setting.values))}
    asked = {
        (which, seed): SettingRun(overrides, seed, iterations or BASE.run.iterations, samples, out)
        for which, overrides in values.items()
        for seed in range(seeds)
    }
    jobs = list({run.key: run for run in asked.values()}.values())
    made = dict(zip((job.key for job in jobs), run_grid(jobs, out, workers, console), strict=True))
    done = {which: made[run.key] for which, run in asked.items()}
    rows = []
    for setting in SETTINGS:
        runs = [[done[(setting.name, i), seed] for seed in range(seeds)] for i in range(len(setting.values))]
        draw(setting, runs, out / f"{setting.name}.png")
        for value, of_value in zip(setting.values, runs, strict=True):
            ends = {name: [run["evaluation"][name] for run in of_value] for name in MEASURED}
            rows.append({"setting": setting.name, "value": value, "ends": {k: _interval(v) for k, v in ends.items()}})
    found = {"seeds": seeds, "samples": samples, "settings": rows, "tune": tuned(done, seeds)}
    write_json(out / "results.json", found)
    return found


def _interval(values: Sequence[float]) -> list[float]:
    found = effect(values)
    return [round(number, 4) for number in (found.mean, found.low, found.high)]


def tuned(done: dict[Any, dict[str, Any]], seeds: int) -> list[dict[str, Any]]:
    """Return one row per seed: the learning rate that `tune` chooses, the best of the grid, and their rewards.

    `done` has the results of runs by setting, value and seed. A run that is continued is bit-equal to one that was
    never stopped, so the choice of `tune` can be read off whole runs.
    """
    rows = []
    for seed in range(seeds):
        runs = {f"{value:g}": done[(RATE.name, i), seed] for i, value in enumerate(RATE.values)}
        ends = {name: run["evaluation"]["reward"] for name, run in runs.items()}
        chosen = choice({name: run["curves"]["reward/mean"] for name, run in runs.items()})
        top = max(ends, key=ends.__getitem__)
        rows.append({"seed": seed, "chosen": chosen, "reward": ends[chosen], "best": top, "best_reward": ends[top]})
    return rows


def draw(setting: Setting, runs: Sequence[Sequence[dict[str, Any]]], path: Path) -> None:
    """Draw reward, KL and diversity over the course of runs, in one colour per value, and write the figure to `path`.

    Each value has one thin line per seed, and a thick line for their mean. `runs` has the results of all seeds for each
    value.
    """
    places = setting.drawn or tuple(range(len(setting.values)))
    panels = (
        ("reward/mean", "reward of rollouts"),
        ("kl/penalty", "KL to the anchor"),
        ("drift/diversity", "diversity, relative to the start"),
    )
    with drawn(path, 3.4, setting.title) as figure:
        for ax, (key, label) in zip(figure.subplots(1, len(panels)), panels, strict=True):
            for colour, place in zip(in_order(len(places)), places, strict=True):
                for curve in (curves := [run["curves"].get(key, []) for run in runs[place]]):
                    ax.plot(*smoothed(curve), color=colour, alpha=0.25, linewidth=0.7)
                length = min(map(len, curves))
                mean = np.mean([curve[:length] for curve in curves], axis=0)
                ax.plot(*smoothed(mean), color=colour, linewidth=2, label=f"{setting.values[place]:g}")
            if key == "kl/penalty":
                ax.set_yscale("log")
            ax.set(title=label, xlabel="share of the run")
        lines, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(lines, labels, title=setting.key.replace(".", ".\n"), loc="outside right center")


def smoothed(curve: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return a smoothed curve: places in the run from 0 to 1, and the mean over the iterations around each place."""
    width = min(SMOOTH, max(1, len(curve) // 4))
    means = np.convolve(curve, np.ones(width) / width, mode="valid") if len(curve) else np.array([])
    return np.linspace(0, 1, len(means)), means
