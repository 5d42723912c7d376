"""The picture of a search: the reward curves of all candidates, and their rewards at the end of each rung."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from sage_grpo.drawing import SILVER, drawn, in_order
from sage_grpo.runs.folder import RunFolder
from sage_grpo.runs.read import number
from sage_grpo.training.trackers import read_metrics
from sage_grpo.tune.tune import Found, Tried

SMOOTH = 0.25  # share of a run that a point of its curve is the mean of


def draw(found: Found, path: Path) -> None:
    order = sorted(found.tried, key=lambda row: (number_of(row) is None, number_of(row) or 0.0, row.name))
    colours = {row.name: colour for row, colour in zip(order, in_order(len(order)), strict=True)}
    with drawn(path, 4.4) as figure:
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        _curves(left, found, order, colours)
        _values(right, found, order, colours)


def _curves(ax: Axes, found: Found, order: Sequence[Tried], colours: Mapping[str, tuple[float, ...]]) -> None:
    best = found.tried[0].name
    for row in order:
        values = rewards_of(row)
        if len(values) < 2:
            continue
        passes = np.arange(1, len(values) + 1) * row.passes / max(row.iterations, 1)
        width = 2.6 if row.name == best else 1.2
        label = row.name + (" (best)" if row.name == best else "")
        ax.plot(passes, smooth(values), color=colours[row.name], linewidth=width, label=label)
    for rung in found.ladder[:-1]:
        ax.axvline(rung.passes, color=SILVER, linewidth=0.8, linestyle=":")
    ax.set_xlabel("passes of the network; candidates drop out at dotted lines")
    ax.set_ylabel("reward of rollouts")
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.legend()


def _values(ax: Axes, found: Found, order: Sequence[Tried], colours: Mapping[str, tuple[float, ...]]) -> None:
    """Draw the candidates' rewards at the end of each rung, by value tried, or by name if values are not numbers."""
    numbers = [value for row in order if (value := number_of(row)) is not None and value > 0]
    ordered = len(numbers) == len(order)
    places = numbers if ordered else [float(i) for i in range(len(order))]
    for place, rung in enumerate(found.ladder):
        reached = [(i, row) for i, row in enumerate(order) if len(row.rewards) > place]
        x = [places[i] for i, _ in reached]
        y = [row.rewards[place] for _, row in reached]
        ax.plot(x, y, color=SILVER, linewidth=1, zorder=1)
        ax.scatter(x, y, color=[colours[row.name] for _, row in reached], s=18 + 22 * place, zorder=2)
        if reached:
            ax.annotate(f"{rung.passes:,.0f}", (x[-1], y[-1]), (4, 4), textcoords="offset points", fontsize=8)
    if ordered:
        ax.set_xscale("log")
        ax.set_xlabel(order[0].name.partition("=")[0])
    else:
        ax.set_xticks(range(len(order)), [row.name for row in order], rotation=30, ha="right", fontsize=8)
    ax.set_ylabel("reward at the end of a rung (passes next to it)")


def number_of(row: Tried) -> float | None:
    """Return the number that a candidate sets, if it overrides a single setting by a number; else None."""
    value = row.name.partition("=")[2]
    try:
        return float(value)
    except ValueError:
        return None


def rewards_of(row: Tried) -> list[float]:
    log = RunFolder(Path(row.folder)).log
    return [number(line.get("reward/mean")) for line in read_metrics(log)] if log.exists() else []


def smooth(values: Sequence[float]) -> np.ndarray:
    """Return the moving average of a curve: each value with those before it, so that it ends where the run does."""
    width = max(1, round(len(values) * SMOOTH))
    return np.array([np.nanmean(values[max(0, i + 1 - width) : i + 1]) for i in range(len(values))])
