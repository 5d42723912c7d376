"""`python -m research efficiency`: how many network passes each saving needs to reach the reward of `lab-paper`."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from research.budgeted_run import REFERENCE, BudgetedRun
from research.grid import run_grid
from research.pass_curves import against_passes, reward_curve
from sage_grpo.config import load_recipe
from sage_grpo.core.passes import forward_passes
from sage_grpo.drawing import BLACK, BLUE, GREEN, ORANGE, PURPLE, SILVER, SKY, VERMILION
from sage_grpo.files import atomic_write
from sage_grpo.statistics import Effect, effect, paired

SEARCHED = (100, 101)  # seeds on which learning rates are found
RATES = (7.5e-5, 1.5e-4, 3e-4, 6e-4, 1.2e-3)
LOOKS = 10  # at the reward, on the way to the end of a budget
SHARE = 5  # savings get one part in so many of the reference's passes
PAPER = "paper"
MEASURED = ("reward", "accuracy", "distance", "diversity")

Overrides = tuple[str, ...]
FEWER: Overrides = ("policy.prompts_per_iteration=4", "policy.batch_size=32")
WINDOW: Overrides = ("policy.num_iterations=1", "policy.timestep_fraction=1.0", "sampling.window.size=1")
RANGE: Overrides = ("sampling.window.range=[0.25,1]",)
SECOND: Overrides = ("sampling.steps=5", "sampling.order=2")
TAIL: Overrides = ("sampling.tail=0.5",)
KL_SHARE: Overrides = ("kl.share=0.5",)
SELECT: Overrides = ("policy.select=2", "policy.batch_size=16")
FAST: Overrides = (*FEWER, *WINDOW, *RANGE, *SECOND, *TAIL, *KL_SHARE, *SELECT)

# One saving after the other; then the last of them with one thing changed.
IN_TURN: dict[str, Overrides] = {
    "fewer-videos": FEWER,
    "window": (*FEWER, *WINDOW),
    "range": (*FEWER, *WINDOW, *RANGE),
    "second-order": (*FEWER, *WINDOW, *RANGE, *SECOND),
    "tail": (*FEWER, *WINDOW, *RANGE, *SECOND, *TAIL),
    "kl-share": (*FEWER, *WINDOW, *RANGE, *SECOND, *TAIL, *KL_SHARE),
    "fast": FAST,
}
VARIED: dict[str, Overrides] = {
    "all-steps": (*FAST, "sampling.window.range=[0,1]"),
    "first-half": (*FAST, "sampling.window.range=[0,0.5]"),
    "per-prompt": (*FAST, "sampling.window.per=prompt", "policy.batch_size=4"),
    "size-2": (*FAST, "sampling.window.size=2"),
    "size-4": (*FAST, "sampling.window.range=[0,1]", "sampling.window.size=4"),
    "best-worst-1": (*FAST, "policy.select=1", "policy.batch_size=8"),
    "skip-flat": (*FAST, "policy.flat_groups=skip", "policy.batch_size=4"),
}
SETTINGS: dict[str, Overrides] = {PAPER: ()} | IN_TURN | VARIED
SAID = {
    PAPER: "lab-paper",
    "fewer-videos": "+ 32 videos per iteration, not 64",
    "window": "+ one stochastic step, one update a rollout",
    "range": "+ not the first quarter of the steps",
    "second-order": "+ five steps of second order, not eight of first",
    "tail": "+ half a tail",
    "kl-share": "+ the anchor in half of the updates",
    "fast": "+ the best and worst two of each eight videos",
    "all-steps": "window anywhere",
    "first-half": "window in the first half",
    "per-prompt": "a window for each prompt",
    "size-2": "window of two steps",
    "size-4": "window of all four",
    "best-worst-1": "the best and the worst of eight",
    "skip-flat": "flat groups skipped",
}


def whole_budget(recipe: str = REFERENCE) -> int:
    """Return the network passes of a whole run of a recipe: videos times passes. A backward pass counts as two."""
    config = load_recipe(recipe)
    return round(forward_passes(config) * config.run.iterations)


def a_race(name: str, rate: float, seed: int, out: Path, *, looks: int, samples: int, role: str = "") -> BudgetedRun:
    share = 1 if name == PAPER else SHARE
    overrides = (*SETTINGS[name], f"optimizer.lr={rate}")
    return BudgetedRun(f"{role}{name}", overrides, seed, whole_budget() // share, looks, samples, out)


def found_rates(out: Path, names: Sequence[str], workers: int | None, console: Console) -> dict[str, float]:
    """Return for each setting the learning rate with the highest final reward, summed over the seeds `SEARCHED`."""
    asked = [(name, rate, seed) for name in names for rate in RATES for seed in SEARCHED]
    races = [a_race(*which, out, looks=1, samples=0, role="search-") for which in asked]
    ends = {which: run["reward"][-1] for which, run in zip(asked, run_grid(races, out, workers, console), strict=True)}
    return {name: max(RATES, key=lambda rate: sum(ends[name, rate, seed] for seed in SEARCHED)) for name in names}


def crossing(passes: Sequence[float], reward: Sequence[float], target: float) -> float | None:
    """Return the number of network passes at which the reward first reached `target`; None if it never did.

    `passes` and `reward` have one value per look. Between looks, the reward is taken to follow straight lines.
    """
    if reward[0] >= target:
        return passes[0]
    for (before, low), (after, high) in pairwise(zip(passes, reward, strict=True)):
        if high >= target:
            return before + (after - before) * (target - low) / (high - low)
    return None


@dataclass(frozen=True)
class Outcome:
    """The outcome of a setting over its seeds, compared with whole runs of `lab-paper` with the same seeds."""

    name: str
    rate: float
    passes_per_video: float
    reached: int  # seeds that reached the reward of the paper's run
    seeds: int
    times_fewer: tuple[float, float, float] | None  # geometric mean with its interval; who never arrived counts as 1
    ends: dict[str, Effect]  # of MEASURED, when the passes are spent
    against: dict[str, Effect]  # their differences to the paper's ends
    at_reward: dict[str, Effect]  # differences when its reward is that of the paper's end, or at the end if it never is

    def to_json(self) -> dict[str, Any]:
        return {
            "setting": self.name,
            "overrides": list(SETTINGS[self.name]),
            "lr": self.rate,
            "passes_per_video": self.passes_per_video,
            "reached": self.reached,
            "times_fewer": self.times_fewer,
            "seeds": self.seeds,
            "ends": {name: [e.mean, e.low, e.high] for name, e in self.ends.items()},
            "against_paper": {name: [e.mean, e.low, e.high] for name, e in self.against.items()},
            "against_paper_at_its_reward": {name: [e.mean, e.low, e.high] for name, e in self.at_reward.items()},
        }


Runs = Mapping[str, Sequence[Mapping[str, Any]]]  # by setting, in the order of their seeds


def judge(runs: Runs, rates: Mapping[str, float]) -> list[Outcome]:
    def ends(name: str, key: str, when: str = "evaluation") -> list[float]:
        return [float((run.get(when) or run["evaluation"])[key]) for run in runs[name]]

    out = []
    for name, own in runs.items():
        pairs = list(zip(own, runs[PAPER], strict=True))
        spent = [crossing(run["passes"], run["reward"], paper["reward"][-1]) for run, paper in pairs]
        fewer = [math.log(paper["passes"][-1] / n) if n else 0.0 for (_, paper), n in zip(pairs, spent, strict=True)]
        found, config = effect(fewer), load_recipe(REFERENCE, list(SETTINGS[name]))
        out.append(
            Outcome(
                name,
                rates[name],
                forward_passes(config) / config.rollouts,
                sum(n is not None for n in spent),
                len(pairs),
                (math.exp(found.mean), math.exp(found.low), math.exp(found.high)) if name != PAPER else None,
                {key: effect(ends(name, key)) for key in MEASURED},
                {key: paired(ends(name, key), ends(PAPER, key)) for key in MEASURED},
                {key: paired(ends(name, key, "on_target"), ends(PAPER, key)) for key in MEASURED},
            )
        )
    return out


def as_markdown(outcomes: Sequence[Outcome]) -> str:
    """Return two Markdown tables with one row per setting.

    The first has the passes until a run reaches the reward of `lab-paper`, and the second the measures at the end of
    runs.
    """
    until = ["| setting | passes per video | times fewer passes | distance then | diversity then |", "|---" * 5 + "|"]
    ends = ["| setting | learning rate | reward | followed | distance | diversity |", "|---" * 6 + "|"]
    for o in outcomes:
        if o.times_fewer:
            mean, low, high = o.times_fewer
            fewer = f"{mean:.1f} [{low:.1f}, {high:.1f}]" if o.reached else "–"
            fewer += f", {o.reached} of {o.seeds}" if o.reached < o.seeds else ""
            then = [with_error(o.at_reward[key], sign="+") for key in ("distance", "diversity")]
            until.append(f"| {' | '.join([SAID[o.name], f'{o.passes_per_video:.1f}', fewer, *then])} |")
        ended = [with_error(o.ends[key]) for key in MEASURED]
        ends.append(f"| {' | '.join([SAID[o.name], f'{o.rate:g}', *ended])} |")
    return "\n".join([*until, "", *ends]) + "\n"


def with_error(found: Effect, sign: str = "") -> str:
    """Return an effect as the text `mean ± half of its interval`, in which no line can break."""
    return f"{found.mean:{sign}.3f}\u00a0±\u00a0{found.high - found.mean:.3f}"


COLOURS = dict(
    zip(
        (PAPER, *IN_TURN),
        (BLACK, SILVER, ORANGE, SKY, GREEN, PURPLE, BLUE, VERMILION),
        strict=True,
    )
)


def draw(runs: Runs, path: Path) -> None:
    """Draw the mean reward over seeds against network passes, one curve per setting, and write the figure to `path`.

    `lab-paper` and the setting with all savings also have their 95 % intervals.
    """
    with against_passes(path, "What a reward costs") as ax:
        for name, colour in COLOURS.items():
            if name in runs:
                said = f"all savings: {SAID[name]}" if name == "fast" else SAID[name]
                width, band = 2.4 if name == "fast" else 1.6, 0.15 if name in (PAPER, "fast") else 0.0
                reward_curve(ax, runs[name], colour, said, width=width, band=band)
        reached = float(np.mean([run["reward"][-1] for run in runs[PAPER]]))
        ax.axhline(reached, color=BLACK, linewidth=0.8, linestyle=":")


def efficiency(
    out: Path,
    *,
    seeds: int,
    samples: int,
    only: Sequence[str] = (),
    workers: int | None = None,
    console: Console | None = None,
) -> list[Outcome]:
    """Measure what each saving brings, and return one outcome per setting, `lab-paper` first.

    Results, results.json, efficiency.md and efficiency.png are written into `out`. `only` names the settings to compare
    with `lab-paper`; empty for all. If the process is killed, call the function again: it continues.
    """
    console = console or Console()
    names = [PAPER, *(name for name in SETTINGS if name != PAPER and (not only or name in only))]
    console.print(f"learning rates, on seeds {SEARCHED[0]} and {SEARCHED[1]}", highlight=False)
    rates = found_rates(out, names, workers, console)
    console.print(f"{len(names)} settings on {seeds} seeds that chose nothing", highlight=False)
    whole = [a_race(PAPER, rates[PAPER], seed, out, looks=LOOKS, samples=samples) for seed in range(seeds)]
    paper = run_grid(whole, out, workers, console)
    asked = [(name, rates[name], seed) for name in names if name != PAPER for seed in range(seeds)]
    races = [
        replace(a_race(*which, out, looks=LOOKS, samples=samples), target=paper[which[-1]]["reward"][-1])
        for which in asked
    ]
    found = run_grid(races, out, workers, console)
    runs = {PAPER: paper} | {name: found[i * seeds : (i + 1) * seeds] for i, name in enumerate(names[1:])}
    outcomes = judge(runs, rates)
    rows = [outcome.to_json() for outcome in outcomes]
    summary = {"seeds": seeds, "samples": samples, "passes": whole_budget(), "settings": rows}
    atomic_write(out / "results.json", (json.dumps(summary, indent=1) + "\n").encode())
    atomic_write(out / "efficiency.md", as_markdown(outcomes).encode())
    draw(runs, out / "efficiency.png")
    return outcomes
