"""Reward against passes of the network, over the seeds of a setting."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sage_grpo.statistics import effect


def passes_figure(title: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(9, 5.2), layout="constrained")
    ax = figure.subplots()
    ax.set_xlabel("passes of the network (a video and step each; a trained one counts three)")
    ax.set_ylabel("reward of fresh videos")
    ax.set_title(title, fontsize=12)
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.grid(alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)
    return figure, ax


def reward_curve(
    ax: Axes, runs: Sequence[Mapping[str, Any]], colour: str, label: str, *, width: float, band: float
) -> None:
    """The mean over runs, as far as all of them went, and its 95 % interval where `band` is above 0."""
    grid = np.linspace(0, min(run["passes"][-1] for run in runs), 60)
    curves = np.array([np.interp(grid, run["passes"], run["reward"]) for run in runs])
    bands = [effect(column.tolist()) for column in curves.T]
    ax.plot(grid, [b.mean for b in bands], color=colour, label=label, linewidth=width)
    if band:
        ax.fill_between(grid, [b.low for b in bands], [b.high for b in bands], color=colour, alpha=band, linewidth=0)
