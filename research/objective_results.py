"""The comparison of objectives from their runs over seeds, its tables and its figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from research.efficiency import MEASURED, Overrides, crossing, with_error
from research.pass_curves import against_passes, reward_curve
from sage_grpo.drawing import BLACK, BLUE, GREEN, ORANGE, PURPLE, SILVER, VERMILION, drawn, legend_below
from sage_grpo.statistics import Effect, effect, holm, p_of_zero, paired

FIRST = "grpo"  # what the others are compared with
STAR = "\u00a0*"  # which no line break parts from its figure

Runs = Mapping[str, Sequence[Mapping[str, Any]]]  # by objective, in the order of their seeds


@dataclass(frozen=True)
class Compared:
    """The outcome of one objective over its seeds, when the passes of its runs are spent."""

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


def judge(runs: Runs, found: Mapping[str, Overrides], passes: Mapping[str, float]) -> list[Compared]:
    """Return the outcomes of the objectives of one group, each compared with `FIRST`.

    By objective, `runs` has the results over seeds, `found` the overrides that the search found, and `passes` the
    network passes per video.
    """

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
        out.append(
            Compared(
                name,
                found[name],
                passes[name],
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
    """Return a Markdown table with one row per objective, and a line with the settings that the search found.

    A star marks a measure whose difference to that of `FIRST` has a corrected p below 0.05.
    """
    head = [
        "objective",
        "passes per video",
        "thousand passes until half",
        "reward",
        "followed",
        "distance",
        "diversity",
    ]
    rows, found = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"], []
    for o in outcomes:
        arrived = f" ({o.reached} of {o.seeds})" if o.reached < o.seeds else ""
        until = f"{o.until.mean:.1f}\u00a0±\u00a0{o.until.high - o.until.mean:.1f}{arrived}"
        ends = [f"{with_error(end)}{STAR if o.p[key] < 0.05 else ''}" for key, end in o.ends.items()]
        rows.append(f"| {' | '.join([f'`{o.name}`', f'{o.passes_per_video:.1f}', until, *ends])} |")
        found.append(f"`{o.name}` {', '.join(map(short, o.found))}")
    return "\n".join(rows) + f"\n\n**Settings found.** {'. '.join(found)}.\n"


def short(override: str) -> str:
    """Return an override as people write it: `optimizer.lr=3e-4` becomes `learning rate 0.0003`."""
    place, _, value = override.partition("=")
    name = {"high": "KL weight", "lr": "learning rate"}.get(place.rpartition(".")[2], place.rpartition(".")[2])
    return f"{name} {float(value):g}"


COLOURS = dict(
    zip(
        ("grpo", "guard", "dppo", "nft", "awm", "dpo", "rwr"),
        (BLACK, SILVER, ORANGE, VERMILION, BLUE, GREEN, PURPLE),
        strict=True,
    )
)


def draw(runs: Runs, said: str, path: Path) -> None:
    """Draw the mean reward over seeds against network passes, with its 95 % interval, one curve per objective.

    `said` is the group in words, for the title. The figure is written to `path`.
    """
    with against_passes(path, f"Objectives at equal passes: {said}") as ax:
        for name, own in runs.items():
            reward_curve(ax, own, COLOURS[name], name, width=2, band=0.12)


PANELS = {
    "updates of a rollout": {1: "once", 2: "twice", 4: "four-times"},
    "iterations between a rollout and its update": {0: "once", 1: "stale-1", 2: "stale-2", 4: "stale-4"},
}


def draw_conditions(outcomes: Mapping[str, Sequence[Compared]], path: Path) -> None:
    """Draw the final reward of runs with its 95 % interval, one line per objective, and write the figure to `path`.

    The left panel is against updates of a rollout, the right one against iterations between a rollout and its update.
    """
    with drawn(path, 4.0, "Rollouts used more than once, and rollouts of an older policy") as figure:
        axes = figure.subplots(1, len(PANELS), sharey=True)
        for ax, (title, groups) in zip(axes, PANELS.items(), strict=True):
            for i, name in enumerate(COLOURS):
                rows = {x: o for x, group in groups.items() for o in outcomes.get(group, ()) if o.name == name}
                if len(rows) < 2:
                    continue
                ends = [o.ends["reward"] for o in rows.values()]
                at = [x + 0.03 * i for x in rows]  # next to each other
                error = [e.high - e.mean for e in ends]
                ax.errorbar(at, [e.mean for e in ends], error, color=COLOURS[name], marker="o", capsize=3, label=name)
            ax.set_xlabel(title)
            ax.set_xticks(list(groups))
        axes[0].set_ylabel("reward at the end")
        legend_below(figure)
