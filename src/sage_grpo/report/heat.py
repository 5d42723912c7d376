"""Draw heat maps of timestep × iteration as SVG, with axes and a legend of colours, and as a table."""

import io
import math
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import matplotlib
import numpy as np
import numpy.typing as npt
from markupsafe import Markup
from PIL import Image

from sage_grpo.report.svg import EM, Axis, breadth, line, linear_ticks, log_ticks, tag, text

Grid = npt.NDArray[np.float64]

COLUMNS = 240  # at most; more iterations share a column as their mean
TABLE_COLUMNS = 8
WIDTH, TOP, ROW, LEGEND = 440.0, 30.0, 11.0, 58.0
COLOURS = "cividis"  # one hue scale from dark to bright for all kinds of colour vision; prints in order of brightness


@dataclass(frozen=True)
class HeatMap:
    """A heat map of values by timestep and iteration: `cells` (timesteps, columns), nan where nothing was measured.

    A column is the mean over the iterations from its `first` to its `last`. The colours range from `low` to `high`.
    """

    title: str
    steps: Sequence[int]  # timestep of each row
    first: Sequence[int]  # iteration that a column begins with
    last: Sequence[int]  # and ends with
    cells: Grid
    low: float
    high: float
    unit: str = ""
    note: str = ""
    log: bool = False

    def in_words(self) -> str:
        """Return a description of what the heat map shows, for readers who cannot see it."""
        known = np.isfinite(self.cells)
        if not known.any():
            return f"{self.title}: nothing was measured."
        words = f"{self.unit} by timestep (rows, noise to data) and iteration {self.first[0]} to {self.last[-1]}."
        means = [float(np.mean(row[ok])) if ok.any() else math.nan for row, ok in zip(self.cells, known, strict=True)]
        finite = [(step, mean) for step, mean in zip(self.steps, means, strict=True) if math.isfinite(mean)]
        smallest, largest = min(finite, key=lambda p: p[1]), max(finite, key=lambda p: p[1])
        return (
            f"{words} Cells lie between {np.nanmin(self.cells):.3g} and {np.nanmax(self.cells):.3g}; on average the "
            f"smallest are at timestep {smallest[0]} ({smallest[1]:.3g}), the largest at {largest[0]} "
            f"({largest[1]:.3g}). {1 - known.mean():.0%} of the cells are empty: not trained in that iteration."
        )

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return the header and the rows of a table of text: means over at most eight ranges of iterations."""
        parts = np.array_split(np.arange(len(self.first)), min(TABLE_COLUMNS, len(self.first)))
        ends = [(self.first[p[0]], self.last[p[-1]]) for p in parts]
        header = ["timestep", *(f"{a}–{b}" if a != b else str(a) for a, b in ends)]
        return header, [
            [str(s), *(mean_text(row[p]) for p in parts)] for s, row in zip(self.steps, self.cells, strict=True)
        ]


def mean_text(values: Grid) -> str:
    known = values[np.isfinite(values)]
    return f"{known.mean():.3g}" if len(known) else "–"


def buckets(count: int, most: int) -> list[npt.NDArray[np.intp]]:
    """Split the indices 0 to `count` − 1 into at most `most` stretches of equal length; the last can be shorter."""
    size = max(math.ceil(count / most), 1)
    return [np.arange(i, min(i + size, count)) for i in range(0, count, size)]


def gather(values: Grid, iterations: Grid, most: int = COLUMNS) -> tuple[Grid, list[int], list[int]]:
    """Average the finite values of each row over equal stretches of iterations.

    Args:
        values: Values (rows, logged iterations).
        iterations: The iteration of each column of `values`.
        most: Most stretches.

    Returns:
        The means (rows, stretches), nan where nothing is finite; and the first and the last iteration of each stretch.
    """
    start, end = int(iterations[0]), int(iterations[-1])
    size = math.ceil((end - start + 1) / most)
    where = ((iterations - start) // size).astype(int)
    total, known = np.zeros((2, len(values), (end - start) // size + 1))
    for row, (sums, counts) in zip(values, zip(total, known, strict=True), strict=True):
        ok = np.isfinite(row)
        np.add.at(sums, where[ok], row[ok])
        np.add.at(counts, where[ok], 1)
    first = [start + i * size for i in range(total.shape[1])]
    cells = np.divide(total, known, out=np.full(total.shape, math.nan), where=known > 0)
    return cells, first, [min(i + size - 1, end) for i in first]


def span_of(grids: Sequence[Grid], log: bool) -> tuple[float, float]:
    """Return the lowest and the highest value of the colours that all `grids` share, so that they can be compared.

    With `log`, the lowest is the smallest value above 0. Otherwise it is 0, or the smallest value if that is below 0.
    """
    known = np.concatenate([g[np.isfinite(g)] for g in grids] or [np.zeros(0)])
    known = known[known > 0] if log else known
    if not len(known):
        return (1e-12, 1.0) if log else (0.0, 1.0)
    low, high = float(known.min()), float(known.max())
    low = low if log else min(low, 0.0)
    return (low, high) if high > low else (low / 2, high * 2) if log else (low, low + 1.0)


@cache
def palette() -> npt.NDArray[np.uint8]:
    colours = np.asarray(matplotlib.colormaps[COLOURS](np.linspace(0, 1, 256)))
    return (colours[:, :3] * 255).round().astype(np.uint8)


def shades(values: Grid, low: float, high: float, log: bool) -> Grid:
    """Return each value's place along the colours, from 0 for `low` to 1 for `high`.

    Values outside have the colour of the nearest end.
    """
    if log:
        with np.errstate(invalid="ignore"):
            values = np.log(np.where(values > low, values, np.where(np.isfinite(values), low, math.nan)))
        low, high = math.log(low), math.log(high)
    return np.clip((values - low) / (high - low), 0, 1)


def picture(cells: Grid, low: float, high: float, log: bool) -> str:
    """Return a heat map's cells as a PNG with one pixel per cell, as a data URI.

    Cells that are nan are transparent, so that the page shines through.
    """
    shade = shades(cells, low, high, log)
    known = np.isfinite(shade)
    colours = palette()[np.where(known, shade * 255, 0).round().astype(int)]
    pixels = np.dstack([colours, np.where(known, 255, 0).astype(np.uint8)])
    out = io.BytesIO()
    Image.fromarray(pixels, "RGBA").save(out, "PNG", optimize=True)
    return "data:image/png;base64," + b64encode(out.getvalue()).decode("ascii")


def image(cells: Grid, box: tuple[float, float, float, float], low: float, high: float, log: bool, kind: str) -> Markup:
    x, y, width, height = box
    frame: dict[str, str | float] = {"x": x, "y": y, "width": width, "height": height, "preserveAspectRatio": "none"}
    return tag("image", href=picture(cells, low, high, log), class_=kind, **frame)


def draw_heat(heat: HeatMap, key: str) -> Markup:
    """Return a heat map as SVG, with its axes and the legend of its colours. Ids of its elements begin with `key`."""
    rows = len(heat.cells)
    row = max(ROW, 110.0 / max(rows, 1))
    bottom = TOP + row * rows
    height = bottom + 40 + LEGEND
    head = {
        "class_": "chart heat",
        "viewBox": f"0 0 {WIDTH:g} {height:g}",
        "role": "img",
        "aria_labelledby": f"{key}-title {key}-desc",
    }
    out = tag("title", heat.title, id=f"{key}-title") + tag("desc", heat.in_words(), id=f"{key}-desc")
    if not np.isfinite(heat.cells).any():
        return tag("svg", out + text(WIDTH / 2, height / 2, "nothing was measured", "middle"), **head)
    left, right = 10 + breadth(str(max(heat.steps))), WIDTH - 10
    out += text(2, EM, "timestep, from noise (0) to data")
    out += tag("rect", class_="empty", x=left, y=TOP, width=right - left, height=bottom - TOP)
    out += image(heat.cells, (left, TOP, right - left, bottom - TOP), heat.low, heat.high, heat.log, "cells")
    for i in range(0, rows, max(1, math.ceil(1.1 * EM / row))):
        out += text(left - 5, TOP + row * (i + 0.5) + EM / 3, str(heat.steps[i]), "end", "tick")
    x = Axis(heat.first[0] - 0.5, heat.last[-1] + 0.5, left, right)
    for value, label in linear_ticks(heat.first[0] - 0.5, heat.last[-1] + 0.5, 5, whole=True):
        out += line(x.place(value), bottom, x.place(value), bottom + 4, class_="edge")
        out += text(x.place(value), bottom + EM + 5, label, "middle", "tick")
    out += text((left + right) / 2, bottom + EM + 22, "iteration", "middle")
    return tag("svg", out + colour_bar(heat, left, right, bottom + 48), **head)


def colour_bar(heat: HeatMap, left: float, right: float, top: float) -> Markup:
    bar = np.linspace(0, 1, 128)[None]
    out = image(bar, (left, top, right - left, 10.0), 0.0, 1.0, False, "bar")
    scale = Axis(heat.low, heat.high, left, right, heat.log)
    ticks = (log_ticks if heat.log else linear_ticks)(heat.low, heat.high, 4)
    for value, label in ticks:
        out += line(scale.place(value), top + 10, scale.place(value), top + 14, class_="edge")
        out += text(scale.place(value), top + 14 + EM, label, "middle", "tick")
    unit = heat.unit + (" (log)" if heat.log else "")
    return out + text((left + right) / 2, top + 16 + 2 * EM, unit, "middle")
