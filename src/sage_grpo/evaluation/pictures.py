"""Draw the distributions of scores over videos, the results of an audit as heat maps, and the waves of sounds."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from torch import Tensor

from sage_grpo.drawing import BLUE, GREY, SKY, VERMILION, drawn
from sage_grpo.evaluation.audit.audit import AuditResult, Cell
from sage_grpo.evaluation.folder import Row, number, summarise

ACROSS = 3  # panels in a row
STRONGEST = 3.0  # spreads at which a colour is full
MARK = {"gamed": " ▲", "blind": " =", "caught": "", "unscored": ""}


def draw_distributions(path: Path, rows: Sequence[Row], keys: Sequence[str]) -> None:
    """Write a picture with one panel per score in `keys`: a histogram over the videos, and a line at the mean.

    Each video is also a point below the bars, at its score.
    """
    summaries = summarise(rows, keys)
    across = min(ACROSS, len(keys))
    down = -(-len(keys) // across)
    with drawn(path, 2.7 * down + 0.5, f"Scores of {len(rows)} videos: each a point, the mean in orange") as figure:
        panels: list[Axes] = figure.subplots(down, across, squeeze=False).ravel().tolist()
        for ax, key in zip(panels, keys, strict=False):
            values = np.array([row.scores[key] for row in rows if key in row.scores])
            summary = summaries[key]
            masked = f", {summary.masked} masked" if summary.masked else ""
            ax.set_title(f"{key}  ({len(values)} scored{masked})")
            ax.spines.left.set_visible(False)
            if not len(values):
                ax.text(0.5, 0.5, "no video has this score", ha="center", color=GREY, transform=ax.transAxes)
                ax.set_axis_off()
                continue
            _histogram(ax, values)
            ax.axvline(values.mean(), color=VERMILION)
            ax.set_xlabel(f"mean {number(summary.mean)}, sd {number(summary.sd)}")
        for ax in panels[len(keys) :]:
            ax.set_axis_off()


def _histogram(ax: Axes, values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> None:
    width = float(np.ptp(values)) or max(abs(float(values[0])) * 0.1, 0.1)
    middle = float(values.min() + values.max()) / 2
    bars = 1 + 2 * min(15, max(3, round(len(values) ** 0.5)))  # odd: equal scores stand in the middle of one
    edges = np.linspace(middle - width * 0.55, middle + width * 0.55, bars + 1)
    counts, _, _ = ax.hist(values, bins=edges.tolist(), color=SKY, alpha=0.7, rwidth=0.94)
    most = float(np.max(counts))
    jitter = np.random.default_rng(0).uniform(-0.22, -0.06, len(values)) * most
    size = 22 if len(values) < 100 else 5
    ax.scatter(values, jitter, s=size, color=BLUE, alpha=0.6, linewidths=0, clip_on=False)
    ax.set_ylim(-0.26 * most, 1.08 * most)
    ax.set_yticks([])
    ax.locator_params(axis="x", nbins=5)


def cell_text(cell: Cell) -> str:
    """Return a cell of the audit as short text: the change in spreads of the score, with the mark of its verdict.

    The text is a dash if no clip has the score together with its copy.
    """
    if cell.change is None:
        return "–"
    digits = 0 if abs(cell.change) >= 9.95 else 1
    text = f"{cell.change:+.{digits}f}".replace("-", "−")
    return (text if text not in ("+0.0", "−0.0") else "0") + MARK[cell.verdict]


def draw_audit(path: Path, result: AuditResult) -> None:
    """Write a heat map of an audit: a row per score, a column per degradation, red where the copies score higher.

    If any score was given to copies with degraded sound, a second heat map below shows those.
    """
    parts = _parts(result)
    wide, high = max(len(names) for _, names in parts), [len(keys) for keys, _ in parts]
    inches = 0.46 * sum(high) + 2.3 + 1.5 * (len(parts) - 1)
    with drawn(path, inches, width=0.82 * wide + 3.2) as figure:
        axes: list[Axes] = figure.subplots(len(parts), squeeze=False, height_ratios=high).ravel().tolist()
        for ax, (keys, names) in zip(axes, parts, strict=True):
            _heat(ax, result, keys, names)
        bar = figure.colorbar(axes[0].images[0], ax=axes, fraction=0.03, pad=0.015, ticks=[-3, -2, -1, 0, 1, 2, 3])
        bar.set_label("change, in spreads of the score")
        bar.outline.set_visible(False)
        axes[0].set_title(
            f"What degrading a clip does to its score ({len(result.clips)} clips; in brackets, how many have it)\n"
            "▲ the copy scores higher: gamed    = neither surely higher nor lower: blind    no mark: lower, caught",
            loc="left",
        )
        for ax in axes[1:]:
            ax.set_title("What degrading its sound does to scores that hear", loc="left")


def _parts(result: AuditResult) -> list[tuple[list[str], list[str]]]:
    """Return the rows and columns of each table of an audit: the names of scores, and the names of degradations.

    Degradations of sound have a second table, because few scorers use the sound.
    """
    heard = [(result.heard, result.sounds)] if result.heard else []
    return [(result.scored, result.degradations), *heard]


def _heat(ax: Axes, result: AuditResult, keys: Sequence[str], names: Sequence[str]) -> None:
    wide, high = len(names), len(keys)
    cells = [[result.cells[key][name] for name in names] for key in keys]
    changes = np.array([[np.nan if cell.change is None else cell.change for cell in row] for row in cells])
    norm = TwoSlopeNorm(0, -STRONGEST, STRONGEST)
    ax.set_facecolor("#eeeeee")
    ax.imshow(changes.clip(-STRONGEST, STRONGEST), cmap="RdBu_r", norm=norm, aspect="auto")
    for y, row in enumerate(cells):
        for x, cell in enumerate(row):
            strong = cell.change is not None and abs(cell.change) > 0.6 * STRONGEST
            weight = "bold" if cell.verdict in ("gamed", "blind") else "normal"
            ax.text(
                x,
                y,
                cell_text(cell),
                ha="center",
                va="center",
                fontsize=9.5,
                color="white" if strong else "black",
                fontweight=weight,
            )
    ax.set_xticks(range(wide), names, rotation=35, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(high), [f"{key}  ({result.natural[key].clips})" for key in keys])
    ax.set_xticks(np.arange(wide + 1) - 0.5, minor=True)
    ax.set_yticks(np.arange(high + 1) - 0.5, minor=True)
    ax.grid(visible=False)
    ax.grid(which="minor", color="white", alpha=1, linewidth=1.5)
    ax.tick_params(which="both", length=0)
    ax.spines[:].set_visible(False)


def draw_sounds(path: Path, waves: Sequence[tuple[str, Tensor]], rate: int, title: str) -> None:
    """Write a picture with one panel per sound, below each other, of the first channel of each.

    All panels share one time axis in seconds and one scale of loudness.

    Args:
        path: The picture to write.
        waves: The name and the wave (channels, samples) of each sound.
        rate: Samples per second of all sounds.
        title: The title of the picture.
    """
    with drawn(path, 0.62 * len(waves) + 1.2, title) as figure:
        axes: list[Axes] = figure.subplots(len(waves), squeeze=False, sharex=True, sharey=True).ravel().tolist()
        for ax, (name, wave) in zip(axes, waves, strict=True):
            ax.plot(np.arange(wave.shape[1]) / rate, wave[0].numpy(), color=BLUE, linewidth=0.4)
            ax.set_ylabel(name, rotation=0, ha="right", va="center")
            ax.set_yticks([])
            ax.spines.left.set_visible(False)
        axes[-1].set_xlabel("seconds")


def markdown(result: AuditResult) -> str:
    """Return an audit as Markdown tables with a row per score and a column per degradation.

    Degraded sound has a table of its own.
    """
    return "\n".join(_rows(result, keys, names) for keys, names in _parts(result))


def _rows(result: AuditResult, keys: Sequence[str], names: Sequence[str]) -> str:
    head = ["score", "clips", *names]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for key in keys:
        cells = [cell_text(result.cells[key][name]) for name in names]
        marked = [f"**{text}**" if text.endswith("▲") else text for text in cells]
        lines.append("| " + " | ".join([f"`{key}`", str(result.natural[key].clips), *marked]) + " |")
    return "\n".join(lines) + "\n"
