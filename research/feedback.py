"""`python -m research feedback`: whether feedback on the KL's weight λ holds the KL at its target.

Runs start from a λ that is ten times too small or too large. Settings, seeds, target, band and length are fixed here,
before the runs. They were chosen on seeds 100 and 101.

Two earlier forms of the rule `proportional` failed. On seeds 0 to 4, one corrected the start too slowly. On seeds 10 to
19, one believed the first KLs. The present form still overshot after 40 iterations on one of seeds 20 to 22, when runs
had 60. So it is judged on seeds of its own, in runs of 96.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from research.grid import Experiment, Job, run_grid
from sage_grpo.config import load_recipe
from sage_grpo.drawing import BLACK, BLUE, GREEN, VERMILION, drawn, legend_below
from sage_grpo.files import write_json

TARGET, BAND, HISTORY = 5e-5, 0.5, 10  # history: one period of the anchor
SETTLED = 1.0  # λ that holds the KL near the target in the second half, on seed 100
STARTS = {"below": SETTLED / 10, "above": SETTLED * 10}
FIRST_SEED = 30
RULES = ("proportional", "lagrangian", "paper")
COMMON = (
    "policy.timestep_fraction=1",  # as the paper: every update sees the same steps, so its KL can be compared
    "kl.warmup=0",
    "kl.low=1e-4",
    "kl.high=1e4",
    f"kl.target={TARGET}",
    f"kl.history={HISTORY}",
    f"kl.band={BAND}",
)
COLOURS = {"proportional": BLUE, "lagrangian": GREEN, "paper": VERMILION}


def experiments(rules: Sequence[str] = RULES) -> dict[str, Experiment]:
    """Return one experiment per rule of feedback and start of λ, by name, such as `paper-below`."""
    return {
        f"{rule}-{name}": Experiment((*COMMON, f"kl.feedback={rule}", f"kl.start={start}"))
        for rule in rules
        for name, start in STARTS.items()
    }


@dataclass(frozen=True)
class Held:
    """The measures of how well one run kept its KL near the target, in the last half of its iterations."""

    name: str
    seed: int
    kl: float
    """Mean KL over the last half."""
    lowest: float
    highest: float
    """The highest mean KL of `HISTORY` successive updates within the last half; `lowest` is the lowest."""
    weight: float
    """λ at the end of the run."""

    @property
    def inside(self) -> bool:
        """Whether every mean KL of `HISTORY` updates in the last half is within ± `BAND` × `TARGET` of `TARGET`."""
        return self.lowest >= (1 - BAND) * TARGET and self.highest <= (1 + BAND) * TARGET


def kl_means(run: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return iterations (n,) and the mean KL of the last `HISTORY` updates at each of them (n,)."""
    points = np.array(run["curves"]["kl/penalty"], dtype=float)
    means = np.convolve(points[:, 1], np.ones(_rows()) / _rows(), mode="valid")
    return points[_rows() - 1 :, 0], means


def _rows() -> int:
    """Return how many iterations `HISTORY` updates take."""
    return HISTORY // load_recipe("lab-paper").policy.updates_per_rollout


def held(run: Mapping[str, Any]) -> Held:
    """Return how well a run kept its KL near the target, in the last half of its iterations."""
    at, means = kl_means(run)
    points = np.array(run["curves"]["kl/penalty"], dtype=float)
    half = run["iterations"] / 2
    late = means[at - _rows() >= half]
    return Held(
        run["name"],
        run["seed"],
        points[points[:, 0] > half, 1].mean().item(),
        late.min().item(),
        late.max().item(),
        run["curves"]["kl_weight"][-1][1],
    )


def as_markdown(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table with one row per rule and start of λ.

    The columns are seeds within the band, KL over target, λ at the end, and reward.
    """
    head = ["feedback", "λ at the start", "seeds within the band", "KL / target", "λ at the end", "reward"]
    table = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name in dict.fromkeys(run["name"] for run in runs):
        rule, start = name.split("-")
        own = [run for run in runs if run["name"] == name]
        judged = [held(run) for run in own]
        levels, weights = [one.kl / TARGET for one in judged], [one.weight for one in judged]
        cells = [
            f"`{rule}`",
            f"{STARTS[start]:g}",
            f"{sum(one.inside for one in judged)} of {len(judged)}",
            f"{np.mean(levels):.2f} ({min(levels):.2f} to {max(levels):.2f})",
            f"{np.median(weights):.3g} ({min(weights):.2g} to {max(weights):.2g})",
            f"{np.mean([run['evaluation']['reward'] for run in own]):.3f}",
        ]
        table.append(f"| {' | '.join(cells)} |")
    return "\n".join(table) + "\n"


def draw(runs: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw λ and the KL over the updates, one line per run, and write the figure to `path`."""
    updates = load_recipe("lab-paper").policy.updates_per_rollout
    with drawn(
        path, 3.8, f"Feedback on λ from {STARTS['below']:g} and {STARTS['above']:g}, a line for each run"
    ) as page:
        left, right = page.subplots(1, 2)
        for run in runs:
            rule = run["name"].split("-")[0]
            line = {"color": COLOURS[rule], "linewidth": 0.8, "alpha": 0.8, "label": rule}
            weight = np.array(run["curves"]["kl_weight"], dtype=float)
            left.semilogy(weight[:, 0] * updates, weight[:, 1], **line)
            at, means = kl_means(run)
            right.semilogy(at * updates, means, **line)
        right.axhspan((1 - BAND) * TARGET, (1 + BAND) * TARGET, color=BLACK, alpha=0.08, label="band")
        right.axhline(TARGET, color=BLACK, linestyle=":", linewidth=1, label="target")
        left.set(title="weight λ", xlabel="update")
        right.set(title=f"mean KL of the last {HISTORY} updates", xlabel="update")
        legend_below(page, [right])


def feedback(
    out: Path,
    *,
    seeds: int,
    iterations: int,
    samples: int,
    rules: Sequence[str] = RULES,
    workers: int | None = None,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Run every rule of feedback from every start of λ on all seeds, and return the results of all runs.

    Results, results.json and feedback.png are written into `out`. If the process is killed, call the function again: it
    continues.
    """
    grid = experiments(rules)
    chosen = range(FIRST_SEED, FIRST_SEED + seeds)
    jobs = [Job(name, grid[name], seed, iterations, samples, out) for name in grid for seed in chosen]
    runs = run_grid(jobs, out, workers, console)
    write_json(out / "results.json", [vars(held(run)) | {"inside": held(run).inside} for run in runs])
    draw(runs, out / "feedback.png")
    return runs
