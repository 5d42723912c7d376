"""Draw line charts as inline SVG, so that a report is one file with crisp curves in light, in dark and on paper."""

import math
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

WIDTH, HEIGHT = 440.0, 270.0
TOP, BOTTOM = 30.0, HEIGHT - 48.0  # the y label lies flat above the plot; ticks and the x label below
EM = 15.0  # font size on a phone, in units of the viewBox: the largest the style sheet uses, so all is laid out for it

# Okabe and Ito's colours, for where no style sheet reaches; the page picks the order that contrasts in light and dark.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("none", "8 3", "2.5 2.5", "9 3 2 3", "14 4")  # five against seven colours: 35 curves before a pair returns


@dataclass(frozen=True)
class Curve:
    """A line and, with `low` and `high`, the band of its uncertainty; a value that is not finite is a gap.

    Attributes:
        behind: Points (x, y) of a faint line behind the curve, such as the values before smoothing.
        look: Number of the curve's colour and dash; None takes its place in the chart.
    """

    name: str
    steps: Sequence[float]
    values: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    behind: Sequence[tuple[float, float]] = ()
    look: int | None = None

    def __post_init__(self) -> None:
        if (self.low is None) != (self.high is None):
            raise ValueError(f"curve {self.name!r} has one side of a band: give both low and high, or neither")
        sizes = {k: len(v) for k in ("steps", "values", "low", "high") if (v := getattr(self, k)) is not None}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"curve {self.name!r} needs lists of one length, got {sizes}: pad the missing with nan")

    def drawable(self, log: bool) -> list[bool]:
        """Return, for each point, whether it can be drawn: if it is finite and, with `log`, its value is above 0."""
        return [plottable(s) and plottable(v, log) for s, v in zip(self.steps, self.values, strict=True)]


@dataclass(frozen=True)
class Chart:
    """Curves over one pair of axes."""

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    note: str = ""
    log_y: bool = False
    limits: Sequence[tuple[str, float]] = ()  # lines across, with their names
    x_range: tuple[float, float] | None = None  # for charts that share it; none means that of the curves

    def looks(self) -> list[int]:
        return [i if curve.look is None else curve.look for i, curve in enumerate(self.curves)]

    def in_words(self) -> str:
        """Return a description of what the chart shows, for readers who cannot see it."""
        words = f"{self.y_label}{' (logarithmic)' if self.log_y else ''} against {self.x_label}."
        for c in self.curves:
            drawn = [v for v, ok in zip(c.values, c.drawable(self.log_y), strict=True) if ok]
            words += f" {c.name}: {len(drawn)} of {len(c.values)} values drawn"
            if drawn:
                words += f", from {drawn[0]:.4g} to {drawn[-1]:.4g}, between {min(drawn):.4g} and {max(drawn):.4g}"
            words += "."
        return words + "".join(f" {name}: {value:.4g}." for name, value in self.limits)


@dataclass(frozen=True)
class Axis:
    """A mapping from values between `low` and `high` to positions between `start` and `end` in the picture."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def place(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:  # a band that reaches down to zero reaches the bottom
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, low))
        return self.start + (self.end - self.start) * (value - low) / (high - low)


def plottable(value: float, log: bool = False) -> bool:
    """Return whether a value can be drawn: it is finite and, on a logarithmic axis, above 0.

    A value so large or so small that spans or logarithms cannot carry it is not drawn.
    """
    return abs(value) < 1e150 and (value > 1e-150 or not log)


def extent(values: Iterable[float], log: bool = False) -> tuple[float, float] | None:
    """Return the smallest and the largest value that can be drawn; None if none can be drawn.

    If both are the same, the range is widened.
    """
    drawable = [v for v in values if plottable(v, log)]
    if not drawable:
        return None
    low, high = min(drawable), max(drawable)
    if high - low > max(1e-9 * max(abs(low), abs(high)), 1e-150):
        return low, high
    pad = abs(low) / 10 if abs(low) > 1e-150 else 1.0
    return (low / 2, high * 2) if log else (low - pad, high + pad)


def linear_ticks(low: float, high: float, count: int, whole: bool = False) -> list[tuple[float, str]]:
    """Return at most `count` + 1 round values between `low` and `high`, each with its label.

    With `whole`, all values are whole numbers.
    """
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    step = max(step, 1.0) if whole else step  # there is no iteration 2.5
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [(k * step, number(k * step, step, max(abs(low), abs(high)))) for k in range(first, last + 1)]


def log_ticks(low: float, high: float, count: int) -> list[tuple[float, str]]:
    """Return the powers of ten between `low` and `high`, each with its label.

    If these are too few, twos and fives are added, or the ticks are those of a linear axis. If they are too many, some
    are left out.
    """
    powers = [10.0**e for e in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    for digits in ((1,), (1, 2, 5)):
        values = [v for p in powers for d in digits if low * (1 - 1e-9) <= (v := d * p) <= high * (1 + 1e-9)]
        if len(values) >= 3:
            return [(v, number(v, v, v)) for v in values[:: math.ceil(len(values) / (count + 1))]]
    return linear_ticks(low, high, count)


def number(value: float, step: float, biggest: float) -> str:
    """Return a tick's value as text, with as many decimals as the `step` between ticks needs.

    If `biggest`, the largest absolute value on the axis, is below 0.001 or at least a million, the text has a power of
    ten.
    """
    places = -math.floor(math.log10(step) + 1e-9)
    if value == 0 or 1e-3 <= biggest * (1 + 1e-9) < 1e6:
        return f"{value:,.{max(0, places)}f}".replace("-", "−") if value else "0"
    power = math.floor(math.log10(biggest) + 1e-9)  # one for the axis, so that its labels compare
    raised = str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{value / 10.0**power:.{min(max(places + power, 0), 6)}f}×10{raised}".replace("-", "−").removeprefix("1×")


def breadth(text: str) -> float:
    """Estimate the width of a text in units of the picture, rather too wide.

    There is no font to measure it with.
    """
    full = (c in "MWmw%…" or unicodedata.east_asian_width(c) in "WF" for c in text)
    return EM * sum(1.0 if wide else 0.78 if c.isupper() else 0.62 for c, wide in zip(text, full, strict=True))


def tag(kind: str, content: str = "", /, **attributes: str | float) -> Markup:
    """Return an SVG or HTML element. Text in it and in its attributes is escaped; content that is markup is kept.

    In attributes, `class_` stands for class and `fill_opacity` for fill-opacity.
    """
    out = Markup("<{}").format(kind)
    for name, value in attributes.items():
        shape = f"{value:.2f}" if isinstance(value, float) else value
        out += Markup(' {}="{}"').format(name.rstrip("_").replace("_", "-"), shape)
    return Markup("{}>{}</{}>\n").format(out, content, kind)


def text(x: float, y: float, content: str, anchor: str = "start", kind: str = "label") -> Markup:
    """Return an SVG text element, shortened to fit inside the picture.

    The picture's <desc> has the full text.
    """
    if breadth(content) > WIDTH:
        content = content[: int(len(content) * WIDTH / breadth(content)) - 1] + "…"
    before = breadth(content) * {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor]
    x = min(max(x, before), WIDTH - breadth(content) + before)
    return tag("text", content, class_=kind, x=x, y=y, text_anchor=anchor)


def ink(index: int) -> dict[str, str]:
    return {"class_": f"c{index % 7}", "stroke": COLOURS[index % 7]}


def line(x1: float, y1: float, x2: float, y2: float, **attributes: str) -> Markup:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, **{"stroke": "#888", **attributes})


def runs(flags: Iterable[bool]) -> list[list[int]]:
    """Return the indices of each unbroken stretch of true flags, one list per stretch."""
    return [[i for i, _ in group] for flag, group in groupby(enumerate(flags), key=lambda pair: pair[1]) if flag]


def marks(curve: Curve, index: int, x: Axis, y: Axis) -> Markup:
    """Return the band and the line of a curve as SVG, cut where a value is missing.

    A single value between two gaps is a dot. `index` is the number of the colour and dash.
    """
    low, high, flags = curve.low or (), curve.high or (), curve.drawable(y.log)

    def trace(where: Iterable[tuple[int, float]]) -> str:
        return " ".join(f"{x.place(curve.steps[i]):.2f},{y.place(v):.2f}" for i, v in where)

    out = tag("title", curve.name)
    for run in runs(ok and plottable(a) and plottable(b, y.log) for ok, a, b in zip(flags, low, high, strict=False)):
        around = [(i, high[i]) for i in run] + [(i, low[i]) for i in reversed(run)]
        edge = {"stroke": "none"} if len(run) > 1 else {}  # a lone value's band has no area: its stroke is an error bar
        out += tag("polygon", points=trace(around), fill_opacity=".18", **edge)
    for run in runs(flags):
        points = trace((i, curve.values[i]) for i in run)
        if len(run) > 1:
            style = {"fill": "none", "stroke_width": "2.2", "stroke_dasharray": DASHES[index % len(DASHES)]}
            out += tag("polyline", points=points, **style)
        else:
            out += tag("circle", **dict(zip(("cx", "cy"), points.split(","), strict=True)), r="4", stroke="none")
    return tag("g", out, **ink(index), fill=ink(index)["stroke"])


def faint(curve: Curve, index: int, x: Axis, y: Axis) -> Markup:
    """Return the points behind a curve as SVG: a faint line, cut where a point cannot be drawn."""
    out = Markup("")
    for run in runs(plottable(a) and plottable(b, y.log) for a, b in curve.behind):
        points = " ".join(f"{x.place(a):.1f},{y.place(b):.1f}" for a, b in curve.behind[run[0] : run[-1] + 1])
        out += tag("polyline", points=points, fill="none")
    return tag("g", out, stroke_opacity=".35", **{**ink(index), "class_": f"behind c{index % 7}"})


def frame(chart: Chart, x: Axis, y: Axis, y_ticks: list[tuple[float, str]], whole: bool) -> Markup:
    """Return the grid, ticks, labels and edge of the plot as SVG.

    With `whole`, the ticks of the x axis are whole numbers.
    """
    out = Markup("")
    for value, label in y_ticks:
        h, kind = y.place(value), "grid" if value else "zero"
        out += line(x.start, h, x.end, h, class_=kind) + text(x.start - 6, h + EM / 3, label, "end", "tick")
    choices = [linear_ticks(x.low, x.high, count, whole) for count in (6, 5, 4, 3, 2, 1)]
    fitting = [ticks for ticks in choices if sum(breadth(label) + EM for _, label in ticks) <= x.end - x.start]
    for value, label in (fitting or choices[-1:])[0]:
        out += line(x.place(value), BOTTOM, x.place(value), BOTTOM + 4, class_="edge")
        out += text(x.place(value), BOTTOM + EM + 5, label, "middle", "tick")
    size = {"x": x.start, "y": TOP, "width": x.end - x.start, "height": BOTTOM - TOP}
    out += tag("rect", class_="plot", fill="none", stroke="#888", **size)
    out += text(2, EM, chart.y_label + (" (log)" if chart.log_y else ""))
    return out + text((x.start + x.end) / 2, HEIGHT - 8, chart.x_label, "middle")


def beside(chart: Chart, x_range: tuple[float, float], y: Axis) -> list[tuple[float, float]] | None:
    """Return two heights for each curve at the right edge of the plot: where its line ends, and where its name stands.

    Return None if the names do not fit there: they are too long or too close, or a line ends before the edge.
    """
    ends, nearly = [], x_range[1] - 0.02 * (x_range[1] - x_range[0])
    for curve in chart.curves:
        last = max((i for i, ok in enumerate(curve.drawable(y.log)) if ok), default=None)
        if last is None or curve.steps[last] < nearly or breadth(curve.name) > 0.23 * WIDTH:
            return None
        ends.append(y.place(curve.values[last]))
    gap, lowest, placed = 1.1 * EM, -math.inf, list(ends)
    for i in sorted(range(len(ends)), key=ends.__getitem__):
        lowest = placed[i] = max(ends[i], lowest + gap)
    placed = [height - max(lowest - BOTTOM, 0.0) for height in placed]
    fits = min(placed) >= TOP and all(abs(a - b) <= 1.5 * gap for a, b in zip(placed, ends, strict=True))
    return list(zip(ends, placed, strict=True)) if fits else None


def limit_lines(chart: Chart, x: Axis, y: Axis) -> Markup:
    """Return the chart's limits as SVG: a dashed line across the plot for each, with its name.

    The name is above its line or, at the top of the plot, below.
    """
    out = Markup("")
    for name, value in chart.limits:
        h = y.place(value)
        out += line(x.start, h, x.end, h, class_="limit", stroke_dasharray="6 4")
        out += text(x.start + 6, h - 5 if h - TOP > 1.3 * EM else h + EM, name, "start", "limit-name")
    return out


def legend(chart: Chart) -> Markup:
    """Return an HTML list of the curves' names, with a sample of each line. It wraps at any width."""
    items = Markup("")
    for i, curve in zip(chart.looks(), chart.curves, strict=True):
        sample = line(0, 5, 34, 5, stroke_width="2.6", stroke_dasharray=DASHES[i % len(DASHES)], **ink(i))
        items += tag("li", tag("svg", sample, width="34", height="10", aria_hidden="true") + curve.name)
    return tag("ul", items, class_="legend")


def draw_chart(chart: Chart, key: str) -> Markup:
    """Return a chart as SVG. Ids of its elements begin with `key`.

    The names of curves are next to the ends of their lines or, if they do not fit there, in a list below the chart.
    """
    labels, view = f"{key}-title {key}-desc", f"0 0 {WIDTH:g} {HEIGHT:g}"
    head = {"class_": "chart", "viewBox": view, "role": "img", "aria_labelledby": labels}
    out = tag("title", chart.title, id=f"{key}-title") + tag("desc", chart.in_words(), id=f"{key}-desc")
    points = [(c, i) for c in chart.curves for i, ok in enumerate(c.drawable(chart.log_y)) if ok]
    behind = [(a, b) for c in chart.curves for a, b in c.behind if plottable(a) and plottable(b, chart.log_y)]
    reach = chart.x_range if points and chart.x_range else ()
    x_range = extent([*(c.steps[i] for c, i in points), *(a for a, _ in behind), *reach])
    heights = [side[i] for c, i in points for side in (c.values, c.low, c.high) if side]
    heights += [b for _, b in behind] + [value for _, value in chart.limits if points]
    y_range = extent(heights, chart.log_y)
    if x_range is None or y_range is None:
        return tag("svg", out + text(WIDTH / 2, HEIGHT / 2, "no finite values to draw", "middle"), **head)
    y = Axis(*y_range, start=BOTTOM, end=TOP, log=chart.log_y)
    y_ticks = (log_ticks if chart.log_y else linear_ticks)(*y_range, 7)
    names = beside(chart, x_range, y)
    right = WIDTH - 10 if names is None else WIDTH - 18 - max(breadth(c.name) for c in chart.curves)
    x = Axis(*x_range, start=10 + max((breadth(label) for _, label in y_ticks), default=0.0), end=right)
    out += frame(chart, x, y, y_ticks, whole=all(c.steps[i] == int(c.steps[i]) for c, i in points))
    looks = chart.looks()
    for draw in (faint, marks):  # no curve's noise covers another's line
        out += Markup("").join(draw(c, i, x, y) for i, c in zip(looks, chart.curves, strict=True))
    out += limit_lines(chart, x, y)
    for i, curve, (end, height) in zip(looks, chart.curves, names or (), strict=False):
        out += line(right, end, right + 12, height, **ink(i)) + text(right + 16, height + EM / 3, curve.name)
    return tag("svg", out, **head) + (legend(chart) if names is None else "")
