"""`sage-grpo lab compare`: every objective at equal passes of the network, each with settings found by equal effort."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from sage_grpo.config import load_recipe
from sage_grpo.core.passes import forward_passes
from sage_grpo.files import atomic_write
from sage_grpo.lab.efficiency import (
    FEWER,
    MEASURED,
    SEARCHED,
    SELECT,
    SHARE,
    Overrides,
    whole_budget,
    with_error,
)
from sage_grpo.lab.grid import run_grid
from sage_grpo.lab.pass_curves import passes_figure, reward_curve
from sage_grpo.lab.race import REFERENCE, Race
from sage_grpo.math.objectives import OBJECTIVES
from sage_grpo.statistics import Effect, effect, holm, p_of_zero, paired

FIRST = "grpo"  # what the others are held against
RATES = (7.5e-5, 1.5e-4, 3e-4, 6e-4)
KEPT = 3  # candidates of an objective that are tried on a second seed
LOOKS = 5  # at the reward, on the way to the end of a budget

# What all of them share: 32 videos an iteration of five steps of second order, of which the best and worst two of each
# eight are trained, in one update.
COMMON: Overrides = (*FEWER, *SELECT, "sampling.steps=5", "sampling.order=2", "policy.num_iterations=1")
COMMON = (*COMMON, "policy.timestep_fraction=1.0", "policy.clip=null", "kl.share=0.5")
ON_STEPS: Overrides = ("sampling.window.size=1", "sampling.window.range=[0.25,1]", "sampling.tail=0.5")
NOISED: Overrides = ("sampling.eta=0", "sampling.shared_initial_noise=false", "policy.points=2", "kl.high=0.1")

# Beside the learning rate each is searched over two values of what holds it back most.
OWN: dict[str, tuple[str, str]] = {
    "grpo": ("policy.clip=1e-4", "policy.clip=1e-3"),
    "guard": ("policy.clip=2e-6", "policy.clip=2e-5"),
    "dppo": ("policy.objective_settings.divergence=1e-5", "policy.objective_settings.divergence=1e-4"),
    "nft": ("kl.high=0.1", "kl.high=1.0"),
    "awm": ("kl.high=0.1", "kl.high=1.0"),
    "dpo": ("policy.objective_settings.beta=2000", "policy.objective_settings.beta=200"),
    "rwr": ("kl.high=0.1", "kl.high=1.0"),
}


@dataclass(frozen=True)
class Group:
    """A comparison: what is changed for all of its objectives. What the search found for each is kept."""

    said: str
    changed: Overrides
    members: tuple[str, ...]
    staleness: int = 0


REUSED = ("grpo", "guard", "dppo", "nft", "awm")  # objectives that are made for several updates of a rollout
GROUPS = {
    "once": Group("one update of a rollout", (), tuple(OWN)),
    "twice": Group("two updates of a rollout", ("policy.num_iterations=2",), REUSED),
    "four-times": Group("four updates of a rollout", ("policy.num_iterations=4",), REUSED),
    "guided": Group("rollouts with guidance 2", ("model.guidance_scale=2",), tuple(OWN)),
    "stale-1": Group("rollouts of one iteration ago", (), REUSED, staleness=1),
    "stale-2": Group("rollouts of two iterations ago", (), REUSED, staleness=2),
    "stale-4": Group("rollouts of four iterations ago", (), REUSED, staleness=4),
}


def setting(name: str, group: str = "once") -> Overrides:
    """Of an objective, without what is searched."""
    kind = NOISED if OBJECTIVES[name].noised else ON_STEPS
    paired = ("policy.select=1", "policy.batch_size=8", "kl.share=1") if OBJECTIVES[name].paired else ()
    return (*COMMON, *kind, *paired, *GROUPS[group].changed, f"policy.objective={name}")


def candidates(name: str) -> list[Overrides]:
    """As many for every objective."""
    return [(own, f"optimizer.lr={rate}") for own in OWN[name] for rate in RATES]


def a_race(
    name: str, found: Overrides, seed: int, out: Path, *, looks: int, samples: int, role: str = "", group: str = "once"
) -> Race:
    label = f"{role}{name}" if group == "once" else f"{role}{group}-{name}"
    overrides, stale = (*setting(name, group), *found), GROUPS[group].staleness
    return Race(label, overrides, seed, whole_budget() // SHARE, looks, samples, out, staleness=stale)


def search(out: Path, names: Sequence[str], workers: int | None, console: Console) -> dict[str, Overrides]:
    """Of each objective the candidate with most reward when the passes are spent.

    All candidates run on the first of the searched seeds, the best of them on the second one too: their sum decides.
    """
    left = {name: candidates(name) for name in names}
    ends: dict[tuple[str, Overrides], float] = defaultdict(float)
    for seed, keep in zip(SEARCHED, (KEPT, 1), strict=True):
        asked = [(name, found) for name in names for found in left[name]]
        races = [a_race(*which, seed, out, looks=1, samples=0, role="search-") for which in asked]
        for which, run in zip(asked, run_grid(races, workers, console), strict=True):
            ends[which] += run["reward"][-1]
        left = {
            name: sorted(tried, key=lambda found: -ends[name, found])[:keep]  # used at once
            for name, tried in left.items()
        }
    return {name: best for name, (best,) in left.items()}


Runs = Mapping[str, Sequence[Mapping[str, Any]]]  # by objective, in the order of their seeds


@dataclass(frozen=True)
class Compared:
    """An objective over its seeds, when its passes are spent."""

    name: str
    found: Overrides
    passes_per_video: float
    seeds: int
    ends: dict[str, Effect]  # of MEASURED
    against: dict[str, Effect]  # differences to FIRST with equal seeds
    p: dict[str, float]  # of those differences, corrected by Holm for the number of objectives

    def to_json(self) -> dict[str, Any]:
        def rows(effects: Mapping[str, Effect]) -> dict[str, list[float]]:
            return {name: [e.mean, e.low, e.high] for name, e in effects.items()}

        return {
            "objective": self.name,
            "found": list(self.found),
            "passes_per_video": self.passes_per_video,
            "seeds": self.seeds,
            "ends": rows(self.ends),
            f"against_{FIRST}": rows(self.against),
            "p_holm": self.p,
        }


def judge(runs: Runs, found: Mapping[str, Overrides], group: str = "once") -> list[Compared]:
    """Of one group. The distance of a run is the mean of its videos'."""

    def ends(name: str, key: str) -> list[float]:
        return [float(np.mean(run["evaluation"][key])) for run in runs[name]]

    others = [name for name in runs if name != FIRST]
    corrected = dict[tuple[str, str], float]()
    for key in MEASURED:
        differences = [np.subtract(ends(name, key), ends(FIRST, key)).tolist() for name in others]
        ps = holm([p_of_zero(values) for values in differences])
        corrected |= {(name, key): p for name, p in zip(others, ps, strict=True)}
    out = []
    for name, own in runs.items():
        config = load_recipe(REFERENCE, [*setting(name, group), *found[name]])
        out.append(
            Compared(
                name,
                found[name],
                forward_passes(config) / config.rollouts,
                len(own),
                {key: effect(ends(name, key)) for key in MEASURED},
                {key: paired(ends(name, key), ends(FIRST, key)) for key in MEASURED},
                {key: corrected.get((name, key), 1.0) for key in MEASURED},
            )
        )
    return out


def as_markdown(outcomes: Sequence[Compared]) -> str:
    """A star marks a difference to the first objective whose corrected p is below 0.05."""
    rows = ["| objective | found | passes a video | reward | followed | distance | diversity |", "|---" * 7 + "|"]
    for o in outcomes:
        said = ", ".join(setting.removeprefix("policy.").removeprefix("objective_settings.") for setting in o.found)
        cells = [f"`{o.name}`", said, f"{o.passes_per_video:.1f}"]
        for key, end in o.ends.items():
            cells.append(f"{with_error(end)}{' *' if o.p[key] < 0.05 else ''}")
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


COLOURS = dict(zip(OWN, ("#000000", "#999999", "#E69F00", "#D55E00", "#0072B2", "#009E73", "#CC79A7"), strict=True))


def draw(runs: Runs, path: Path, group: str = "once") -> None:
    """Reward against passes, mean over seeds with its 95 % interval."""
    figure, ax = passes_figure(f"Objectives at equal passes: {GROUPS[group].said}")
    for name, own in runs.items():
        reward_curve(ax, own, COLOURS[name], name, width=2, band=0.12)
    ax.legend(frameon=False, fontsize=9, loc="lower right")
    figure.savefig(path, dpi=130)


def compare(
    out: Path,
    *,
    seeds: int,
    samples: int,
    only: Sequence[str] = (),
    groups: Sequence[str] = ("once",),
    workers: int | None = None,
    console: Console | None = None,
) -> dict[str, list[Compared]]:
    """Runs, results.json, compare.md and a figure of each group into `out`; called again after a kill, it goes on."""
    console = console or Console()
    names = [FIRST, *(name for name in OWN if name != FIRST and (not only or name in only))]
    tried = len(candidates(FIRST))
    console.print(f"{tried} candidates of each objective, on seeds {SEARCHED[0]} and {SEARCHED[1]}", highlight=False)
    found = search(out, names, workers, console)
    outcomes, tables = dict[str, list[Compared]](), list[str]()
    for group in groups:
        members = [name for name in names if name in GROUPS[group].members]
        console.print(f"{GROUPS[group].said}: {len(members)} objectives on {seeds} fresh seeds", highlight=False)
        asked = [(name, found[name], seed) for name in members for seed in range(seeds)]
        races = [a_race(*which, out, looks=LOOKS, samples=samples, group=group) for which in asked]
        results = run_grid(races, workers, console)
        runs = {name: results[i * seeds : (i + 1) * seeds] for i, name in enumerate(members)}
        outcomes[group] = judge(runs, found, group)
        tables.append(f"## {GROUPS[group].said[0].upper()}{GROUPS[group].said[1:]}\n\n{as_markdown(outcomes[group])}")
        draw(runs, out / f"{group}.png", group)
    summary: dict[str, Any] = {"seeds": seeds, "samples": samples, "passes": whole_budget() // SHARE, "tried": tried}
    summary["groups"] = {group: [outcome.to_json() for outcome in rows] for group, rows in outcomes.items()}
    atomic_write(out / "results.json", (json.dumps(summary, indent=1) + "\n").encode())
    atomic_write(out / "compare.md", "\n".join(tables).encode())
    return outcomes
