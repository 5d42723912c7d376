"""The style that all figures share: width, font sizes, grid, and colours that people with any colour vision can tell
apart."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from matplotlib import colormaps, style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sage_grpo.files import draft_of

# Colours of Okabe and Ito; yellow is left out, as thin lines of it are lost on white.
BLUE, VERMILION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, BLACK, GREY, SILVER = "#E69F00", "#56B4E9", "#000000", "#666666", "#999999"
LINES = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
MARKS = "osD^vP"  # besides colours, so that lines differ in print

WIDTH = 10.0  # inches. Pages show every figure as wide as their text, so letters come out equally large
LOOK = {
    "figure.constrained_layout.w_pad": 0.08,  # inches
    "figure.constrained_layout.h_pad": 0.08,
    "font.size": 10,
    "figure.titlesize": 12,
    "axes.titlesize": 11,
    "axes.labelsize": 10,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "savefig.dpi": 130,
}


@contextmanager
def drawn(path: Path, height: float, title: str = "", *, width: float = WIDTH) -> Iterator[Figure]:
    """Yield a figure of `width` × `height` inches to draw on, and write it to `path` at the end of the block.

    The format is the ending of the file's name, or PNG if there is none. If the block raises an error, no file is
    written.
    """
    with style.context(LOOK):
        figure = Figure(figsize=(width, height), layout="constrained")
        if title:
            figure.suptitle(title)
        yield figure
        with draft_of(path) as draft:
            figure.savefig(draft, format=path.suffix[1:] or "png")


def legend_below(figure: Figure, axes: Sequence[Axes] | None = None) -> None:
    """Add one legend below the figure, with the labels of the panels `axes`, by default those of all panels.

    A label that several panels have appears once.
    """
    panels = figure.axes if axes is None else axes
    handles = {label: line for ax in panels for line, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=len(handles))


def in_order(count: int) -> list[tuple[float, ...]]:
    """Return `count` colours (red, green, blue, alpha) from dark to bright, for curves whose values have an order."""
    return [tuple(colour) for colour in colormaps["viridis"](np.linspace(0.05, 0.88, count))]
