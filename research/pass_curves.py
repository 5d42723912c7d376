"""Figures of the reward against the number of network passes, as the mean over seeds."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from sage_grpo.drawing import drawn
from sage_grpo.statistics import effect


@contextmanager
def against_passes(path: Path, title: str) -> Iterator[Axes]:
    """Yield axes for `reward_curve`. At the end of the block, write the figure with a legend to `path`."""
    with drawn(path, 5.2, title) as figure:
        ax = figure.subplots()
        ax.set_xlabel("passes of the network (a video and step each; a trained one counts three)")
        ax.set_ylabel("reward of fresh videos")
        ax.xaxis.set_major_formatter("{x:,.0f}")
        yield ax
        ax.legend(loc="lower right")


def reward_curve(
    ax: Axes, runs: Sequence[Mapping[str, Any]], colour: str, label: str, *, width: float, band: float
) -> None:
    """Draw the mean reward of runs against their network passes, as far as all runs reach.

    `band` is the opacity of the 95 % interval; 0 for none. `width` is that of the line.
    """
    grid = np.linspace(0, min(run["passes"][-1] for run in runs), 60)
    curves = np.array([np.interp(grid, run["passes"], run["reward"]) for run in runs])
    bands = [effect(column.tolist()) for column in curves.T]
    ax.plot(grid, [b.mean for b in bands], color=colour, label=label, linewidth=width)
    if band:
        ax.fill_between(grid, [b.low for b in bands], [b.high for b in bands], color=colour, alpha=band, linewidth=0)
