"""`python -m research compare`: objectives at equal network passes, with settings found by the same search for each."""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from research.budgeted_run import BudgetedRun
from research.efficiency import (
    FEWER,
    KL_SHARE,
    RANGE,
    SEARCHED,
    SECOND,
    SELECT,
    SHARE,
    TAIL,
    Overrides,
    whole_budget,
)
from research.grid import run_grid
from research.metrics import metrics_of
from research.objective_results import FIRST, Compared, as_markdown, draw, draw_conditions, judge
from research.run_log import RunLog, rounded
from sage_grpo.config import load_recipe
from sage_grpo.core.passes import forward_passes
from sage_grpo.files import atomic_write
from sage_grpo.math.objectives import OBJECTIVES

RATES = (7.5e-5, 1.5e-4, 3e-4, 6e-4)
KEPT = 3  # candidates of an objective that are tried on a second seed
LOOKS = 5  # at the reward, on the way to the end of a budget

# What all of them share: 32 videos per iteration of five steps of second order, of which the best and worst two of each
# eight are trained, in one update.
COMMON: Overrides = (*FEWER, *SELECT, *SECOND, "policy.num_iterations=1")
COMMON = (*COMMON, "policy.timestep_fraction=1.0", "policy.clip=null", *KL_SHARE)
ON_STEPS: Overrides = ("sampling.window.size=1", *RANGE, *TAIL)
NOISED: Overrides = ("sampling.eta=0", "sampling.shared_initial_noise=false", "policy.points=2", "kl.high=0.1")

# Besides the learning rate each is searched over three values of what holds it back most.
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
    """A comparison of the objectives `members` under one condition, such as older rollouts.

    The overrides `changed` apply to all of them, besides the settings that the search found for each.
    """

    said: str
    changed: Overrides
    members: tuple[str, ...]
    limits: str | None = None
    """Name of the group in which the limits of `LIMITS` are searched; None if limits do not matter."""
    staleness: int = 0
    world: str = "shapes"

    @property
    def title(self) -> str:
        return self.said[0].upper() + self.said[1:]  # OCR stays OCR

    @property
    def budget(self) -> int:
        """Network passes of each run: a fifth of those in a whole run of the world's recipe."""
        return whole_budget(metrics_of(self.world).recipe) // SHARE


GROUPS = {
    "once": Group("one update of a rollout", (), tuple(OWN)),
    "twice": Group("two updates of a rollout", ("policy.num_iterations=2",), tuple(LIMITS), "twice"),
    "four-times": Group("four updates of a rollout", ("policy.num_iterations=4",), tuple(LIMITS), "four-times"),
    "guided": Group("rollouts with guidance 2", ("model.guidance_scale=2",), ("grpo", "nft", "awm")),
    "stale-1": Group("rollouts of one iteration ago", (), ("grpo", "nft", "awm"), "four-times", 1),
    "stale-2": Group("rollouts of two iterations ago", (), ("grpo", "nft", "awm"), "four-times", 2),
    "stale-4": Group("rollouts of four iterations ago", (), ("grpo", "nft", "awm"), "four-times", 4),
    "text": Group("numbers, with OCR as the reward", (), ("grpo", "nft", "awm"), world="text"),
}


def setting(name: str, group: str = "once") -> Overrides:
    """Return the overrides of an objective in a group, without the settings that the search finds."""
    kind = NOISED if OBJECTIVES[name].renoised else ON_STEPS
    pairs = ("policy.select=1", "policy.batch_size=8", "kl.share=1") if OBJECTIVES[name].paired else ()
    return (*COMMON, *kind, *pairs, *GROUPS[group].changed, f"policy.objective={name}")


def candidates(name: str) -> list[Overrides]:
    """Return the sets of overrides that the search tries for an objective. All objectives have equally many."""
    return [(own, f"optimizer.lr={rate}") for own in OWN[name] for rate in RATES]


def passes_per_video(name: str, found: Overrides, group: str = "once") -> float:
    config = load_recipe(metrics_of(GROUPS[group].world).recipe, [*setting(name, group), *found])
    branches = 1 if config.model.guidance_scale in (None, 1) else 2
    return forward_passes(config, branches) / config.rollouts


def a_race(
    name: str, found: Overrides, seed: int, out: Path, *, looks: int, samples: int, role: str = "", group: str = "once"
) -> BudgetedRun:
    label = f"{role}{name}" if group == "once" else f"{role}{group}-{name}"
    chosen, overrides = GROUPS[group], (*setting(name, group), *found)
    stale, world = chosen.staleness, chosen.world
    return BudgetedRun(label, overrides, seed, chosen.budget, looks, samples, out, staleness=stale, world=world)


@dataclass
class Search:
    """A search for the settings of each objective, on seeds that no comparison uses.

    Each search runs once, and all groups that need its result share it.
    """

    names: Sequence[str]
    out: Path
    run: Callable[[Sequence[BudgetedRun]], list[dict[str, Any]]]
    console: Console
    _limited: dict[str, dict[str, Overrides]] = field(default_factory=dict)

    def found(self, group: str) -> dict[str, Overrides]:
        """Return the overrides that the search found for each objective of a group."""
        limits = GROUPS[group].limits
        found = self._with_limits(limits) if limits else self._first
        return {name: found[name] for name in self.names if name in GROUPS[group].members}

    @cached_property
    def _first(self) -> dict[str, Overrides]:
        tried, (one, two) = len(candidates(FIRST)), SEARCHED
        self.console.print(f"{tried} candidates of each objective, on seeds {one} and {two}", highlight=False)
        found = self._best_of({name: candidates(name) for name in self.names if name in OWN}, "once", (KEPT, 1))
        return found | {name: found[like] for name, like in LIKE.items()}

    def _with_limits(self, group: str) -> dict[str, Overrides]:
        if group not in self._limited:
            first, limited = self._first, [name for name in self.names if name in LIMITS]
            self.console.print(f"two limits of each objective, {GROUPS[group].said}", highlight=False)
            tries = {name: [(*first[name], limit) for limit in LIMITS[name]] for name in limited}
            self._limited[group] = self._best_of(tries, group, (2, 1))
        return self._limited[group]

    def _best_of(
        self, tries: Mapping[str, Sequence[Overrides]], group: str, keep: Sequence[int]
    ) -> dict[str, Overrides]:
        """Return each objective's candidate with the highest reward at the end of its runs, summed over seeds.

        `tries` has the candidates by objective. After each seed of `SEARCHED`, `keep` says how many of the best
        continue.
        """
        left = {name: list(its) for name, its in tries.items()}
        ends: dict[tuple[str, Overrides], float] = defaultdict(float)
        for seed, number in zip(SEARCHED, keep, strict=True):
            asked = [(name, found) for name, its in left.items() for found in its]
            races = [a_race(*which, seed, self.out, looks=1, samples=0, role="search-", group=group) for which in asked]
            for which, result in zip(asked, self.run(races), strict=True):
                ends[which] += result["reward"][-1]
            for name, its in left.items():
                left[name] = [found for _, found in sorted((-ends[name, found], found) for found in its)[:number]]
        return {name: best for name, (best,) in left.items()}


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
    """Compare objectives in each group, and return their outcomes by group.

    Results, results.json, compare.md and figures are written into `out` after each group. `only` names the objectives
    to compare with `FIRST`; empty for all. If the process is killed, call the function again: it continues.
    """
    console = console or Console()

    def run(races: Sequence[BudgetedRun]) -> list[dict[str, Any]]:
        return run_grid(races, out, workers, console)

    names = [FIRST, *(name for name in OBJECTIVE_NAMES if name != FIRST and (not only or name in only))]
    search, outcomes = Search(names, out, run, console), dict[str, list[Compared]]()
    for group in groups:
        found = search.found(group)
        console.print(f"{GROUPS[group].said}: {len(found)} objectives on {seeds} fresh seeds", highlight=False)
        asked = [(name, its, seed) for name, its in found.items() for seed in range(seeds)]
        results = run([a_race(*which, out, looks=LOOKS, samples=samples, group=group) for which in asked])
        runs = {name: results[i * seeds : (i + 1) * seeds] for i, name in enumerate(found)}
        outcomes[group] = judge(runs, found, {name: passes_per_video(name, its, group) for name, its in found.items()})
        draw(runs, GROUPS[group].said, out / f"{group}.png")
        write(outcomes, out, seeds=seeds, samples=samples)
    return outcomes


def write(outcomes: Mapping[str, Sequence[Compared]], out: Path, **asked: int) -> None:
    hours = sum(run["cpu_seconds"] for run in RunLog(out / "runs.jsonl").read().values()) / 3600
    summary: dict[str, Any] = {**asked, "tried": len(candidates(FIRST)), "cpu_hours_of_all_runs": hours}
    summary["passes"] = {group: GROUPS[group].budget for group in outcomes}
    summary["groups"] = {group: [outcome.to_json() for outcome in rows] for group, rows in outcomes.items()}
    tables = [f"## {GROUPS[group].title}\n\n{as_markdown(rows)}" for group, rows in outcomes.items()]
    atomic_write(out / "results.json", (json.dumps(rounded(summary), indent=1) + "\n").encode())
    atomic_write(out / "compare.md", "\n".join(tables).encode())
    if len(outcomes) > 1:
        draw_conditions(outcomes, out / "conditions.png")
