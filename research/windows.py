"""`python -m research windows`: where the one stochastic step of recipe `lab` should be, with 8 and with 20 steps.

Training and evaluation use guidance 2. All windows have the same number of network passes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console

from research.efficiency import crossing
from research.grid import run_grid
from research.lab_run import LabRun, chosen, value
from sage_grpo.config import load_recipe
from sage_grpo.files import atomic_write
from sage_grpo.statistics import Effect, effect, holm, p_of_zero, paired

WIDTH = 48
STEPS = (8, 20)
RANGES = {"first half": "[0, 0.5]", "anywhere": "[0, 1]", "last three quarters": "[0.25, 1]"}
FIRST_SEED = 200  # nothing was chosen on this seed or a later one
LOOKS = 10  # at a run on its way
TARGETS = {"followed": 0.9, "reward": 0.75}  # whose costs are compared; the base has 0.68 and -0.06
COLUMN = {"followed": 1, "reward": 2}  # in a row of a run's curve


def setting_of(steps: int, window: str) -> str:
    return f"{window.replace(' ', '-')}-of-{steps}"


def a_run(steps: int, window: str, seed: int | None, samples: int, out: Path) -> LabRun:
    setting = "base" if seed is None else window
    overrides = (f"sampling.steps={steps}", f"sampling.window={{size: 1, range: {RANGES[window]}}}")
    return LabRun(WIDTH, setting_of(steps, setting), overrides, seed, samples, out, LOOKS if seed is not None else 0)


@dataclass(frozen=True)
class Verdict:
    """The effect of the first half against another window, and whether more prompts are followed, as was expected."""

    steps: int
    other: str
    effect: Effect  # on the share of prompts followed at the end
    p: float
    """P-value of the one-sided test against 0, after Holm's correction over all windows and numbers of steps."""
    fewer: dict[
        str, Effect
    ]  # logarithm of how many times fewer passes reach a target; who never reached it counts with all

    @property
    def holds(self) -> bool:
        return self.p < 0.05


def until(row: dict[str, Any], target: str) -> float | None:
    """Return the iterations after which a run first reached a target, with straight lines between looks."""
    curve = row["curve"]
    return crossing([look[0] for look in curve], [look[COLUMN[target]] for look in curve], TARGETS[target])


def cost(row: dict[str, Any], target: str) -> float:
    """Return the passes until a run reached a target; all of its passes if it never did."""
    return float(row["passes"] * iterations(row, target) / row["curve"][-1][0])


def iterations(row: dict[str, Any], target: str) -> float:
    """Return the iterations until a run reached a target, one at least; all of its iterations if it never did."""
    found = until(row, target)
    return float(row["curve"][-1][0] if found is None else max(found, 1.0))


def verdicts(rows: Sequence[dict[str, Any]]) -> list[Verdict]:
    """Return the effects of the first half against the other windows, paired by seed."""
    found, ps = [], []
    for steps in STEPS:
        own = chosen(rows, setting_of(steps, "first half"), WIDTH)
        for other in list(RANGES)[1:]:
            rival = chosen(rows, setting_of(steps, other), WIDTH)
            seeds = sorted(own.keys() & rival.keys())
            ours, theirs = ([value(runs[seed], "followed") for seed in seeds] for runs in (own, rival))
            more = [a - b for a, b in zip(ours, theirs, strict=True)]
            two_sided = p_of_zero(more)
            ps.append(two_sided / 2 if sum(more) > 0 else 1 - two_sided / 2)
            fewer = {
                target: effect([math.log(cost(rival[seed], target) / cost(own[seed], target)) for seed in seeds])
                for target in TARGETS
            }
            found.append((steps, other, paired(ours, theirs), fewer))
    return [Verdict(steps, other, e, p, fewer) for (steps, other, e, fewer), p in zip(found, holm(ps), strict=True)]


def table_of(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *body)) + "\n"


def as_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return three Markdown tables: what runs end with, what targets cost, and the effects of the first half."""
    return "\n".join((ends(rows), costs(rows), effects(rows)))


def ends(rows: Sequence[dict[str, Any]]) -> str:
    head = ["steps", "window", "runs", "prompts followed", "flicker or halt", "distance", "diversity"]
    shares, body = ("followed", "flawed"), []
    for steps in STEPS:
        base = [row for row in rows if row["seed"] is None and row["setting"] == setting_of(steps, "base")]
        trained = {window: list(chosen(rows, setting_of(steps, window), WIDTH).values()) for window in RANGES}
        for name, group in {"base": base, **trained}.items():
            mean = {m: sum(value(row, m) for row in group) / len(group) for m in (*shares, "distance", "diversity")}
            measures = [f"{100 * x:.1f}\u00a0%" if m in shares else f"{x:.3f}" for m, x in mean.items()]
            body.append([str(steps), name, str(len(group)) if name != "base" else "", *measures])
    return table_of(head, body)


def costs(rows: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table of geometric means over seeds, with `>` where a run never reached its target."""
    head, body, rollouts = ["steps", "window"], [], load_recipe("lab").rollouts
    for target in ("90\u00a0% of prompts", f"reward {TARGETS['reward']}"):
        head += [f"{target}: reached", "passes", "videos"]
    for steps, window in product(STEPS, RANGES):
        group, cells = list(chosen(rows, setting_of(steps, window), WIDTH).values()), [str(steps), window]
        for target in TARGETS:
            reached = sum(until(row, target) is not None for row in group)
            least = "" if reached == len(group) else ">\u00a0"
            spent = [math.log(cost(row, target)) for row in group]
            videos = [math.log(rollouts * iterations(row, target)) for row in group]
            means = [float(f"{math.exp(effect(logs).mean):.3g}") for logs in (spent, videos)]
            cells += [f"{reached} of {len(group)}", *(f"{least}{mean:,.0f}" for mean in means)]
        body.append(cells)
    return table_of(head, body)


def effects(rows: Sequence[dict[str, Any]]) -> str:
    head = ["steps", "first half against", "prompts followed [95\u00a0%]", "p after Holm", "as expected"]
    head += ["times fewer passes to 90\u00a0%", f"to reward {TARGETS['reward']}"]
    body = []
    for v in verdicts(rows):
        points = "{:+.1f} [{:+.1f}, {:+.1f}] points".format(*(100 * x for x in three(v.effect)))
        p = f"{v.p:.4f}" if v.p >= 1e-4 else "< 0.0001"
        fewer = ["{:.1f} [{:.1f}, {:.1f}]".format(*map(math.exp, three(found))) for found in v.fewer.values()]
        body.append([str(v.steps), v.other, points, p, "yes" if v.holds else "no", *fewer])
    return table_of(head, body)


def three(found: Effect) -> tuple[float, float, float]:
    return found.mean, found.low, found.high


def windows(
    out: Path, *, seeds: int, samples: int, workers: int | None = None, console: Console | None = None
) -> list[dict[str, Any]]:
    """Run all windows with both numbers of steps, and write results and table.txt into `out`.

    If the process is killed, call the function again: it continues.
    """
    jobs = [a_run(steps, "first half", None, samples, out) for steps in STEPS]
    jobs += [
        a_run(steps, window, seed, samples, out)
        for seed in range(FIRST_SEED, FIRST_SEED + seeds)
        for steps in STEPS
        for window in RANGES
    ]
    rows = run_grid(jobs, out, workers, console)
    atomic_write(out / "table.txt", as_markdown(rows).encode())
    return rows
