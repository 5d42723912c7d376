"""`python -m research outside`: recipe `lab` with and without its penalty on velocities outside the window.

There are two widths. Runs without the penalty have as many iterations more as cost the same passes of the network.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from research.grid import run_grid
from research.lab_run import LabRun, chosen, value
from sage_grpo.files import atomic_write
from sage_grpo.statistics import Effect, holm, p_of_zero, paired

WIDTHS = (96, 48)
SETTINGS = {"with": (), "without": ("kl.outside_weight=0",)}
FIRST_SEED = 10  # nothing was chosen on this seed or a later one
# What is expected of `with` − `without`, and how much less than that would still do.
MARGINS = {"followed": -0.03, "distance": 0.0, "diversity": 0.0}
SIGNS = {"followed": 1, "distance": -1, "diversity": 1}  # larger is better, or smaller


def a_run(width: int, setting: str, seed: int | None, samples: int, out: Path) -> LabRun:
    return LabRun(width, setting, SETTINGS[setting], seed, samples, out)


@dataclass(frozen=True)
class Verdict:
    """The effect of the penalty on one measure at one width, over seeds, and whether it is what was expected."""

    width: int
    measure: str
    effect: Effect
    p: float
    """P-value of the one-sided test against the margin, after Holm's correction over all measures and widths."""

    @property
    def holds(self) -> bool:
        return self.p < 0.05


def verdicts(rows: Sequence[dict[str, Any]]) -> list[Verdict]:
    """Return the effects of the penalty, paired by seed, in the order of `WIDTHS` and `MARGINS`."""
    effects, ps = [], []
    for width in WIDTHS:
        pairs = {setting: chosen(rows, setting, width) for setting in SETTINGS}
        seeds = sorted(pairs["without"].keys() & pairs["with"].keys())
        for name, margin in MARGINS.items():
            treated, control = ([value(pairs[s][seed], name) for seed in seeds] for s in ("with", "without"))
            effects.append((width, name, paired(treated, control)))
            beyond = [SIGNS[name] * (a - b) - margin for a, b in zip(treated, control, strict=True)]
            two_sided = p_of_zero(beyond)
            ps.append(two_sided / 2 if sum(beyond) > 0 else 1 - two_sided / 2)
    return [Verdict(*effect, p) for effect, p in zip(effects, holm(ps), strict=True)]


def as_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return two Markdown tables: means per width and setting, and the effects of the penalty."""
    head = ["width", "model", "runs", "prompts followed", "flicker or halt", "distance", "diversity", "passes"]
    table = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for width in WIDTHS:
        groups = {"base": [row for row in rows if row["width"] == width and row["seed"] is None]}
        for setting in SETTINGS:
            groups[setting] = list(chosen(rows, setting, width).values())
        for name, group in groups.items():
            mean = {m: sum(value(row, m) for row in group) / len(group) for m in (*MARGINS, "flawed")}
            cells = [
                str(width),
                name,
                str(len(group)) if name != "base" else "",
                f"{100 * mean['followed']:.1f}\u00a0%",
                f"{100 * mean['flawed']:.1f}\u00a0%",
                f"{mean['distance']:.3f}",
                f"{mean['diversity']:.3f}",
                f"{group[0]['passes']:,.0f}" if "passes" in group[0] else "",
            ]
            table.append(f"| {' | '.join(cells)} |")
    head = ["width", "measure", "with − without [95 %]", "margin", "p after Holm", "as expected"]
    table += ["", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for found in verdicts(rows):
        e, scale, digits = (
            found.effect,
            (100 if found.measure == "followed" else 1),
            (1 if found.measure == "followed" else 3),
        )
        interval = f"{scale * e.mean:+.{digits}f} [{scale * e.low:+.{digits}f}, {scale * e.high:+.{digits}f}]"
        unit = " points" if found.measure == "followed" else ""
        margin = f"{SIGNS[found.measure] * MARGINS[found.measure] * scale + 0.0:g}{unit}"
        cells = [
            str(found.width),
            found.measure,
            interval + unit,
            margin,
            f"{found.p:.4f}" if found.p >= 1e-4 else "< 0.0001",
            "yes" if found.holds else "no",
        ]
        table.append(f"| {' | '.join(cells)} |")
    return "\n".join(table) + "\n"


def outside(
    out: Path, *, seeds: int, samples: int, workers: int | None = None, console: Console | None = None
) -> list[dict[str, Any]]:
    """Run all settings at all widths, and write results and table.txt into `out`.

    If the process is killed, call the function again: it continues.
    """
    jobs = [
        a_run(width, setting, seed, samples, out)
        for seed in range(FIRST_SEED, FIRST_SEED + seeds)
        for width in WIDTHS
        for setting in SETTINGS
    ]
    bases = [a_run(width, "with", None, samples, out) for width in WIDTHS]
    rows = run_grid([*bases, *jobs], out, workers, console)
    atomic_write(out / "table.txt", as_markdown(rows).encode())
    return rows
