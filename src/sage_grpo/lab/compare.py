"""`sage-grpo lab compare`: every objective at equal passes of the network, each with settings found by equal effort."""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

from sage_grpo.config import load_recipe
from sage_grpo.core.passes import forward_passes
from sage_grpo.files import atomic_write
from sage_grpo.lab.efficiency import (
    FEWER,
    KL_SHARE,
    MEASURED,
    RANGE,
    SEARCHED,
    SECOND,
    SELECT,
    SHARE,
    TAIL,
    Overrides,
    crossing,
    whole_budget,
    with_error,
)
from sage_grpo.lab.grid import run_grid
from sage_grpo.lab.measures import measure_of
from sage_grpo.lab.pass_curves import passes_figure, reward_curve
from sage_grpo.lab.race import Race
from sage_grpo.math.objectives import OBJECTIVES
from sage_grpo.statistics import Effect, effect, holm, p_of_zero, paired

FIRST = "grpo"  # what the others are held against
RATES = (7.5e-5, 1.5e-4, 3e-4, 6e-4)
KEPT = 3  # candidates of an objective that are tried on a second seed
LOOKS = 5  # at the reward, on the way to the end of a budget

# What all of them share: 32 videos an iteration of five steps of second order, of which the best and worst two of each
# eight are trained, in one update.
COMMON: Overrides = (*FEWER, *SELECT, *SECOND, "policy.num_iterations=1")
COMMON = (*COMMON, "policy.timestep_fraction=1.0", "policy.clip=null", *KL_SHARE)
ON_STEPS: Overrides = ("sampling.window.size=1", *RANGE, *TAIL)
NOISED: Overrides = ("sampling.eta=0", "sampling.shared_initial_noise=false", "policy.points=2", "kl.high=0.1")

# Beside the learning rate each is searched over three values of what holds it back most.
KL_ON_STEPS = ("kl.high=0.1", "kl.high=0.5", "kl.high=2.5")
KL_NOISED = ("kl.high=1.0", "kl.high=5.0", "kl.high=25.0")
OWN: dict[str, Overrides] = {
    "grpo": KL_ON_STEPS,
    "guard": KL_ON_STEPS,
    "nft": KL_NOISED,
    "awm": KL_NOISED,
    "dpo": tuple(f"policy.objective_settings.beta={beta}" for beta in (20, 200, 2000)),
    "rwr": KL_NOISED,
}
# With one update of a fresh rollout all ratios are 1 and nothing is clipped. Where there are more, or rollouts are old,
# each is searched over two limits. `dppo` differs from `grpo` by its limit alone, and takes over what was found for it.
LIMITS: dict[str, tuple[str, str]] = {
    "grpo": ("policy.clip=1e-4", "policy.clip=1e-3"),
    "guard": ("policy.clip=2e-6", "policy.clip=2e-5"),
    "dppo": ("policy.objective_settings.divergence=1e-5", "policy.objective_settings.divergence=1e-4"),
    "nft": ("policy.objective_settings.beta=1", "policy.objective_settings.beta=0.3"),
    "awm": ("policy.clip=1.0", "policy.clip=0.01"),
}
LIKE = {"dppo": "grpo"}
OBJECTIVE_NAMES = (*LIMITS, *(name for name in OWN if name not in LIMITS))


@dataclass(frozen=True)
class Group:
    """A comparison: what is changed for all of its objectives. What the search found for each is kept."""

    said: str
    changed: Overrides
    members: tuple[str, ...]
    limits: str | None = None
    """The group in which limits were searched, if they matter."""
    staleness: int = 0
    world: str = "shapes"

    @property
    def budget(self) -> int:
        """Passes of each run: a fifth of those that its world's recipe takes."""
        return whole_budget(measure_of(self.world).recipe) // SHARE


GROUPS = {
    "once": Group("one update of a rollout", (), tuple(OWN)),
    "twice": Group("two updates of a rollout", ("policy.num_iterations=2",), tuple(LIMITS), "twice"),
    "four-times": Group("four updates of a rollout", ("policy.num_iterations=4",), tuple(LIMITS), "four-times"),
    "guided": Group("rollouts with guidance 2", ("model.guidance_scale=2",), ("grpo", "guard", "nft", "awm")),
    "stale-1": Group("rollouts of one iteration ago", (), ("grpo", "nft", "awm"), "four-times", 1),
    "stale-2": Group("rollouts of two iterations ago", (), ("grpo", "nft", "awm"), "four-times", 2),
    "stale-4": Group("rollouts of four iterations ago", (), ("grpo", "nft", "awm"), "four-times", 4),
    "text": Group("numbers, with OCR as the reward", (), ("grpo", "guard", "nft", "awm"), world="text"),
}


def setting(name: str, group: str = "once") -> Overrides:
    """Of an objective, without what is searched."""
    kind = NOISED if OBJECTIVES[name].noised else ON_STEPS
    pairs = ("policy.select=1", "policy.batch_size=8", "kl.share=1") if OBJECTIVES[name].paired else ()
    return (*COMMON, *kind, *pairs, *GROUPS[group].changed, f"policy.objective={name}")


def candidates(name: str) -> list[Overrides]:
    """As many for every objective."""
    return [(own, f"optimizer.lr={rate}") for own in OWN[name] for rate in RATES]


def a_race(
    name: str, found: Overrides, seed: int, out: Path, *, looks: int, samples: int, role: str = "", group: str = "once"
) -> Race:
    label = f"{role}{name}" if group == "once" else f"{role}{group}-{name}"
    chosen, overrides = GROUPS[group], (*setting(name, group), *found)
    stale, world = chosen.staleness, chosen.world
    return Race(label, overrides, seed, chosen.budget, looks, samples, out, staleness=stale, world=world)


def best_of(
    tries: Mapping[str, Sequence[Overrides]],
    group: str,
    keep: Sequence[int],
    run: Callable[[Sequence[Race]], Any],
    out: Path,
) -> dict[str, Overrides]:
    """Of each objective's tries the one with most reward when the passes are spent, summed over the searched seeds.

    After each seed so many are kept as `keep` says.
    """
    left = {name: list(its) for name, its in tries.items()}
    ends: dict[tuple[str, Overrides], float] = defaultdict(float)
    for seed, number in zip(SEARCHED, keep, strict=True):
        asked = [(name, found) for name, its in left.items() for found in its]
        races = [a_race(*which, seed, out, looks=1, samples=0, role="search-", group=group) for which in asked]
        for which, result in zip(asked, run(races), strict=True):
            ends[which] += result["reward"][-1]
        for name, its in left.items():
            left[name] = [found for _, found in sorted((-ends[name, found], found) for found in its)[:number]]
    return {name: best for name, (best,) in left.items()}


Runs = Mapping[str, Sequence[Mapping[str, Any]]]  # by objective, in the order of their seeds


@dataclass(frozen=True)
class Compared:
    """An objective over its seeds, when its passes are spent."""

    name: str
    found: Overrides
    passes_per_video: float
    seeds: int
    until: Effect  # thousands of passes until half of what FIRST gains; who never arrives counts with all of them
    reached: int  # seeds that arrive
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
            "thousand_passes_until_half": [self.until.mean, self.until.low, self.until.high],
            "reached": self.reached,
            "ends": rows(self.ends),
            f"against_{FIRST}": rows(self.against),
            "p_holm": self.p,
        }


def judge(runs: Runs, found: Mapping[str, Overrides], group: str = "once") -> list[Compared]:
    """Of one group."""

    def ends(name: str, key: str) -> list[float]:
        return [float(run["evaluation"][key]) for run in runs[name]]

    others = [name for name in runs if name != FIRST]
    corrected = dict[tuple[str, str], float]()
    for key in MEASURED:
        differences = [np.subtract(ends(name, key), ends(FIRST, key)).tolist() for name in others]
        ps = holm([p_of_zero(values) for values in differences])
        corrected |= {(name, key): p for name, p in zip(others, ps, strict=True)}
    half = float(np.mean([(run["reward"][0] + run["reward"][-1]) / 2 for run in runs[FIRST]]))
    out = []
    for name, own in runs.items():
        spent = [crossing(run["passes"], run["reward"], half) for run in own]
        until = [run["passes"][-1] if n is None else n for run, n in zip(own, spent, strict=True)]
        config = load_recipe(measure_of(GROUPS[group].world).recipe, [*setting(name, group), *found[name]])
        out.append(
            Compared(
                name,
                found[name],
                forward_passes(config) / config.rollouts,
                len(own),
                effect([n / 1000 for n in until]),
                sum(n is not None for n in spent),
                {key: effect(ends(name, key)) for key in MEASURED},
                {key: paired(ends(name, key), ends(FIRST, key)) for key in MEASURED},
                {key: corrected.get((name, key), 1.0) for key in MEASURED},
            )
        )
    return out


def as_markdown(outcomes: Sequence[Compared]) -> str:
    """A star marks a difference to the first objective whose corrected p is below 0.05."""
    head = ["objective", "found", "passes a video", "thousand passes until half", "reward", "followed", "distance"]
    rows = [f"| {' | '.join([*head, 'diversity'])} |", "|---" * 8 + "|"]
    for o in outcomes:
        said = ", ".join(setting.removeprefix("policy.").removeprefix("objective_settings.") for setting in o.found)
        arrived = f" ({o.reached} of {o.seeds})" if o.reached < o.seeds else ""
        until = f"{o.until.mean:.1f}\u00a0±\u00a0{o.until.high - o.until.mean:.1f}{arrived}"
        cells = [f"`{o.name}`", said, f"{o.passes_per_video:.1f}", until]
        for key, end in o.ends.items():
            cells.append(f"{with_error(end)}{' *' if o.p[key] < 0.05 else ''}")
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


COLOURS = dict(
    zip(
        ("grpo", "guard", "dppo", "nft", "awm", "dpo", "rwr"),
        ("#000000", "#999999", "#E69F00", "#D55E00", "#0072B2", "#009E73", "#CC79A7"),
        strict=True,
    )
)


def draw(runs: Runs, path: Path, group: str = "once") -> None:
    """Reward against passes, mean over seeds with its 95 % interval."""
    figure, ax = passes_figure(f"Objectives at equal passes: {GROUPS[group].said}")
    for name, own in runs.items():
        reward_curve(ax, own, COLOURS[name], name, width=2, band=0.12)
    ax.legend(frameon=False, fontsize=9, loc="lower right")
    figure.savefig(path, dpi=130)


PANELS = {
    "Updates of a rollout": {1: "once", 2: "twice", 4: "four-times"},
    "Iterations between a rollout and its update": {0: "once", 1: "stale-1", 2: "stale-2", 4: "stale-4"},
}


def draw_conditions(outcomes: Mapping[str, Sequence[Compared]], path: Path) -> None:
    """Reward when the passes are spent, with its 95 % interval, against updates of a rollout and its age."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots(1, len(PANELS), sharey=True)
    for ax, (title, groups) in zip(axes, PANELS.items(), strict=True):
        for i, name in enumerate(COLOURS):
            rows = {x: o for x, group in groups.items() for o in outcomes.get(group, ()) if o.name == name}
            if len(rows) < 2:
                continue
            ends = [o.ends["reward"] for o in rows.values()]
            at = [x + 0.03 * i for x in rows]  # beside each other
            error = [e.high - e.mean for e in ends]
            ax.errorbar(at, [e.mean for e in ends], error, color=COLOURS[name], marker="o", capsize=3, label=name)
        ax.set_xlabel(title)
        ax.set_xticks(list(groups))
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("Reward at the end")
    axes[0].legend(frameon=False, fontsize=9)
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

    def run(races: Sequence[Race]) -> list[dict[str, Any]]:
        return run_grid(races, out, workers, console)

    names = [FIRST, *(name for name in OBJECTIVE_NAMES if name != FIRST and (not only or name in only))]
    tried = len(candidates(FIRST))
    console.print(f"{tried} candidates of each objective, on seeds {SEARCHED[0]} and {SEARCHED[1]}", highlight=False)
    first = best_of({name: candidates(name) for name in names if name in OWN}, "once", (KEPT, 1), run, out)
    first |= {name: first[like] for name, like in LIKE.items()}
    limited = dict[str, dict[str, Overrides]]()
    outcomes, tables = dict[str, list[Compared]](), list[str]()
    for group in groups:
        members, limits = [name for name in names if name in GROUPS[group].members], GROUPS[group].limits
        found = {name: first[name] for name in members}
        if limits:
            if limits not in limited:
                console.print(f"two limits of each objective, {GROUPS[limits].said}", highlight=False)
                tries = {name: [(*first[name], limit) for limit in LIMITS[name]] for name in names if name in LIMITS}
                limited[limits] = best_of(tries, limits, (2, 1), run, out)
            found = {name: limited[limits][name] for name in members}
        console.print(f"{GROUPS[group].said}: {len(members)} objectives on {seeds} fresh seeds", highlight=False)
        asked = [(name, found[name], seed) for name in members for seed in range(seeds)]
        results = run([a_race(*which, out, looks=LOOKS, samples=samples, group=group) for which in asked])
        runs = {name: results[i * seeds : (i + 1) * seeds] for i, name in enumerate(members)}
        outcomes[group] = judge(runs, found, group)
        tables.append(f"## {GROUPS[group].said[0].upper()}{GROUPS[group].said[1:]}\n\n{as_markdown(outcomes[group])}")
        draw(runs, out / f"{group}.png", group)
    draw_conditions(outcomes, out / "conditions.png")
    summary: dict[str, Any] = {"seeds": seeds, "samples": samples, "tried": tried}
    summary["passes"] = {group: GROUPS[group].budget for group in outcomes}
    summary["groups"] = {group: [outcome.to_json() for outcome in rows] for group, rows in outcomes.items()}
    atomic_write(out / "results.json", (json.dumps(summary, indent=1) + "\n").encode())
    atomic_write(out / "compare.md", "\n".join(tables).encode())
    return outcomes
