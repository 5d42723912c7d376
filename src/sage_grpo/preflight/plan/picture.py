"""Figure of a sweep: seconds per iteration and videos per GPU-hour, against the number of GPUs."""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from sage_grpo.drawing import BLACK, GREY, LINES, MARKS, drawn, legend_below
from sage_grpo.preflight.plan.sweep import PAYS, Cell


def draw_sweep(cells: Sequence[Cell], title: str, path: Path) -> None:
    said = "grey ring: more videos per iteration than the recipe's; ✕: memory does not suffice"
    with drawn(path, 4.4, f"{title}; {said}") as figure:
        _panels(figure, cells)


def _panels(figure: Figure, cells: Sequence[Cell]) -> None:
    axes = figure.subplots(1, 2)
    known = [cell for cell in cells if cell.plan]
    series = sorted({(cell.sequence, cell.replicate) for cell in known})
    several = len({replicate for _, replicate in series}) > 1
    for (sequence, replicate), colour, mark in zip(series, cycle(LINES), cycle(MARKS), strict=False):
        line = sorted((c for c in known if (c.sequence, c.replicate) == (sequence, replicate)), key=lambda c: c.gpus)
        name = f"{sequence} GPU{'s' * (sequence > 1)} a video" + (f", {replicate} copies" if several else "")
        values = ([c.plan.iteration for c in line if c.plan], [c.per_gpu_hour for c in line])
        for axis, heights in zip(axes, values, strict=True):
            axis.plot([c.gpus for c in line], heights, color=colour, marker=mark, label=name)
            out = [(c.gpus, h) for c, h in zip(line, heights, strict=True) if c.plan and not c.plan.fits]
            grown = [(c.gpus, h) for c, h in zip(line, heights, strict=True) if "× videos" in c.why]
            if out:
                axis.plot(*zip(*out, strict=True), "x", color=BLACK, markersize=11)
            if grown:
                axis.plot(*zip(*grown, strict=True), "o", mfc="none", color=GREY, markersize=13)
    fits = [c.per_gpu_hour for c in known if c.plan and c.plan.fits]
    if fits:
        axes[1].axhline(PAYS * max(fits), color=GREY, linestyle="--", linewidth=1)
        axes[1].text(
            0.01,
            PAYS * max(fits),
            f" {PAYS:.0%} of the best",
            transform=axes[1].get_yaxis_transform(),
            va="bottom",
            color=GREY,
            fontsize=8,
        )
    axes[0].set(title="Seconds per iteration", yscale="log")
    axes[1].set(title="Videos a GPU-hour", ylim=(0, None))
    for axis in axes:
        axis.set_xscale("log", base=2)
        axis.set_xticks(sorted({c.gpus for c in known}))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        axis.set_xlabel("GPUs")
    legend_below(figure)
