"""A sweep as a picture: time of an iteration, and what a GPU makes in an hour."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter, NullLocator

from sage_grpo.plan.sweep import PAYS, Cell

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKS = "osD^vP"


def draw_sweep(cells: Sequence[Cell], title: str, path: Path) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.4), layout="constrained")
    known = [cell for cell in cells if cell.plan]
    series = sorted({(cell.sequence, cell.replicate) for cell in known})
    several = len({replicate for _, replicate in series}) > 1
    for i, (sequence, replicate) in enumerate(series):
        line = sorted((c for c in known if (c.sequence, c.replicate) == (sequence, replicate)), key=lambda c: c.gpus)
        name = f"{sequence} GPU{'s' * (sequence > 1)} a video" + (f", {replicate} copies" if several else "")
        values = ([c.plan.iteration for c in line if c.plan], [c.per_gpu_hour for c in line])
        for axis, heights in zip(axes, values, strict=True):
            axis.plot([c.gpus for c in line], heights, color=COLOURS[i % 6], marker=MARKS[i % 6], label=name)
            out = [(c.gpus, h) for c, h in zip(line, heights, strict=True) if c.plan and not c.plan.fits]
            grown = [(c.gpus, h) for c, h in zip(line, heights, strict=True) if "× videos" in c.why]
            if out:
                axis.plot(*zip(*out, strict=True), "x", color="black", markersize=11, label="_")
            if grown:
                axis.plot(*zip(*grown, strict=True), "o", mfc="none", color="grey", markersize=13, label="_")
    fits = [c.per_gpu_hour for c in known if c.plan and c.plan.fits]
    if fits:
        axes[1].axhline(PAYS * max(fits), color="grey", linestyle="--", linewidth=1)
        axes[1].text(
            0.01,
            PAYS * max(fits),
            f" {PAYS:.0%} of the best",
            transform=axes[1].get_yaxis_transform(),
            va="bottom",
            color="grey",
            fontsize=8,
        )
    axes[0].set(title="Seconds an iteration", yscale="log")
    axes[1].set(title="Videos a GPU-hour", ylim=(0, None))
    for axis in axes:
        axis.set_xscale("log", base=2)
        axis.set_xticks(sorted({c.gpus for c in known}))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        axis.set_xlabel("GPUs")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.suptitle(
        f"{title}: grey ring: more videos an iteration than the recipe's; ✕: memory does not suffice", fontsize=10
    )
    figure.savefig(path, dpi=130)
    plt.close(figure)
