"""`python -m research windows`: where the one stochastic step of recipe `lab` should be, with 8 and with 20 steps.

Training and evaluation use guidance 2. All windows have the same number of network passes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
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


def as_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return two Markdown tables: what each window ends with and costs, and the effects of the first half."""
    head = ["steps", "window", "runs", "prompts followed", "flicker or halt", "distance", "diversity"]
    head += [f"{what} to 90\u00a0% of the prompts" for what in ("passes", "videos")]
    head += [f"{what} to reward {TARGETS['reward']}" for what in ("passes", "videos")]
    table = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    rollouts = load_recipe("lab").rollouts
    for steps in STEPS:
        base = [row for row in rows if row["seed"] is None and row["setting"] == setting_of(steps, "base")]
        groups = {"base": base} | {
            window: list(chosen(rows, setting_of(steps, window), WIDTH).values()) for window in RANGES
        }
        for name, group in groups.items():
            names = ("followed", "flawed", "distance", "diversity")
            mean = {m: sum(value(row, m) for row in group) / len(group) for m in names}
            cells = [str(steps), name, str(len(group)) if name != "base" else ""]
            cells += [f"{100 * mean[m]:.1f}\u00a0%" for m in names[:2]] + [f"{mean[m]:.3f}" for m in names[2:]]
            for target in TARGETS if name != "base" else ():
                reached = sum(until(row, target) is not None for row in group)
                least = "" if reached == len(group) else "> "
                some = "" if reached == len(group) else f" ({reached} of {len(group)})"
                spent = [cost(row, target) for row in group]
                videos = [rollouts * iterations(row, target) for row in group]
                cells += [
                    f"{least}{math.exp(effect([math.log(n) for n in n_of]).mean):,.0f}{some}"
                    for n_of in (spent, videos)
                ]
            table.append(f"| {' | '.join([*cells, *[''] * (len(head) - len(cells))])} |")
    head = ["steps", "first half against", "prompts followed [95 %]", "p after Holm", "as expected"]
    head += ["times fewer passes to 90\u00a0%", f"to reward {TARGETS['reward']}"]
    table += ["", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for v in verdicts(rows):
        cells = [str(v.steps), v.other, "{:+.1f} [{:+.1f}, {:+.1f}] points".format(*(100 * x for x in three(v.effect)))]
        cells += [f"{v.p:.4f}" if v.p >= 1e-4 else "< 0.0001", "yes" if v.holds else "no"]
        for fewer in v.fewer.values():
            cells.append("{:.1f} [{:.1f}, {:.1f}]".format(*(math.exp(x) for x in three(fewer))))
        table.append(f"| {' | '.join(cells)} |")
    return "\n".join(table) + "\n"


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
