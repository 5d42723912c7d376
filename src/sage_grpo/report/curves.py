"""Make the curves of a report from the logs of runs.

A curve is smoothed with the raw values behind it, has few enough points to draw, and is pooled over seeds.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtrit

from sage_grpo.report.compare import Group
from sage_grpo.report.heat import buckets
from sage_grpo.report.svg import Chart, Curve
from sage_grpo.runs.alarms import LIMITS
from sage_grpo.runs.read import Column, RunRecord

POINTS = 300  # a curve; more iterations share a point
MOST = 12  # parts of a reward, or monitors, with a chart each
X = Callable[[RunRecord], Column]  # where on the axis a run's iterations lie


@dataclass(frozen=True)
class Plot:
    """The columns of the log that are drawn in one chart, and how they are drawn.

    `keys` has the name of the curve for each column.
    """

    title: str
    unit: str
    keys: dict[str, str]
    smooth: bool = True
    log: bool = False
    spread: str = ""  # a column to draw as a band around
    limit: str = ""  # setting that draws a line
    note: str = ""
    named: bool = False  # several runs have a chart a key: whether its name is part of the title


FIXED = (
    Plot(
        "Reward",
        "reward",
        {"reward/mean": "mean"},
        spread="reward/std",
        note="Band: ± one standard deviation of the iteration's rollouts. They explore with noise, on a few prompts.",
    ),
    Plot("Spread of the reward", "standard deviation", {"reward/std": "of all rollouts"}),
    Plot(
        "Groups that teach nothing",
        "share",
        {"zero_std_ratio": "no spread", "reward/failed": "failed rewards"},
        named=True,
    ),
    Plot(
        "KL",
        "KL per element",
        {"kl/anchor": "to the anchor", "kl/old": "to the rollout policy"},
        log=True,
        named=True,
    ),
    Plot(
        "Change outside the window",
        "squared change of the velocity",
        {"kl/outside": "at untrained noise levels"},
        log=True,
    ),
    Plot("Weight λ of the KL", "λ", {"kl_weight": "λ"}, smooth=False),
    Plot("Clip fraction", "share of samples", {"clip_frac": "clipped"}),
    Plot("Ratio", "mean of new to old probability", {"ratio_mean": "ratio"}),
    Plot("Gradient norm", "norm before clipping", {"grad_norm": "gradient"}, log=True),
    Plot("Skipped updates", "updates", {"skipped_updates": "not finite"}, smooth=False),
)
DRIFT = {
    "base_error": ("Drift: the base model's error on the policy's videos", "ratio to the start"),
    "diversity": ("Drift: diversity within a group", "ratio to the start"),
    "motion": ("Drift: change from frame to frame", "ratio to the start"),
    "saturation": ("Drift: black or white pixels", "change of their share"),
    "exposure": ("Drift: mean brightness", "change, of the full range"),
    "clipping": ("Drift: samples of the sound at full scale", "change of their share"),
    "loudness": ("Drift: loudness of the sound", "ratio to the start"),
    "kl_initial": ("Drift: KL to the initial policy", "KL per element"),
}


def plots_of(runs: Sequence[RunRecord]) -> list[Plot]:
    """Return the plots to draw, with the columns that at least one run has logged, without those that are always 0."""
    keys = list(dict.fromkeys(key for run in runs for key in run.columns if run.has(key)))
    parts = [key for key in keys if key.startswith("reward/") and key[7:] not in ("mean", "std", "failed")]
    scores = [key for key in keys if key.startswith("held_out/")]
    phases = [key for key in keys if key.startswith("seconds/")]
    cut = "" if len(parts) <= MOST else f"The first {MOST} of {len(parts)}."
    less = "" if len(scores) <= MOST else f"The first {MOST} of {len(scores)} monitors are shown."
    plots = [
        FIXED[0],
        Plot("Parts of the reward", "score", {key: key[7:] for key in parts[:MOST]}, note=cut, named=True),
    ]
    plots += FIXED[1:]
    plots += [
        Plot(title, unit, {f"drift/{name}": name}, smooth=False, limit=name) for name, (title, unit) in DRIFT.items()
    ]
    plots += [
        Plot(
            f"Held out: {key[9:]}",
            "score",
            {key: key[9:]},
            smooth=False,
            note=f"Of the sample videos at fixed seeds; never trained on. {less}".strip(),
        )
        for key in scores[:MOST]
    ]
    plots.append(
        Plot(
            "Seconds of an iteration",
            "seconds",
            {key: key[8:] for key in phases},
            note="Rollout is with rewards and gauge.",
            named=True,
        )
    )
    zero = always_zero(runs)
    drawn = [replace(p, keys={k: name for k, name in p.keys.items() if k in keys and k not in zero}) for p in plots]
    return [plot for plot in drawn if plot.keys]


def always_zero(runs: Sequence[RunRecord]) -> list[str]:
    """Return the log columns, of those in `FIXED`, whose values are 0 in all runs.

    The report lists their names instead of drawing them.
    """
    keys = [key for plot in FIXED for key in plot.keys]
    logged = [key for key in keys if any(run.has(key) for run in runs)]
    return [key for key in logged if not any(np.nan_to_num(run.column(key)).any() for run in runs)]


def smoothed(values: Column, steps: Column, decay: float) -> Column:
    """Return, at each finite value, the exponential mean of the values up to it; other places stay nan.

    Weights fall by the factor `decay` per iteration and are normalised, so that the first value does not pull on the
    rest.

    Args:
        values: The values, (iterations,).
        steps: The number of each iteration.
        decay: The factor, from 0 for no smoothing to 1.
    """
    out = np.full(len(values), math.nan)
    total, weight, before = 0.0, 0.0, 0.0
    for i in np.flatnonzero(np.isfinite(values)):
        fade = decay ** (steps[i] - before) if weight else 0.0
        total, weight, before = total * fade + values[i], weight * fade + 1.0, steps[i]
        out[i] = total / weight
    return out


def thin(x: Column, values: Column, most: int = POINTS) -> list[tuple[float, float]]:
    """Return a line with few points (x, value) that keep every peak.

    The points are the smallest and the largest value of each of `most` stretches, in their order. A line of up to
    `most` points stays as it is.
    """
    if len(x) <= most:
        return [(float(a), float(b)) for a, b in zip(x, values, strict=True)]
    points = []
    for where in buckets(len(x), most):
        known = where[np.isfinite(values[where])]
        if len(known):
            ends = sorted({known[values[known].argmin()], known[values[known].argmax()]})
            points += [(float(x[i]), float(values[i])) for i in ends]
        else:
            points.append((float(x[where[0]]), math.nan))
    return points


def mean_of(values: Column, where: Column) -> float:
    known = values[where][np.isfinite(values[where])]
    return float(known.mean()) if len(known) else math.nan


def band_of(rows: Column) -> tuple[Column, Column, Column]:
    """Return the mean over seeds, and the lower and the upper end of its 95 % interval by Student's t.

    `rows` has a row per seed. For two seeds, the ends are the smaller and the larger value.
    """
    mean, n = rows.mean(0), len(rows)
    if n == 2:
        return mean, rows.min(0), rows.max(0)
    half = float(stdtrit(n - 1, 0.975)) * rows.std(0, ddof=1) / math.sqrt(n)
    return mean, mean - half, mean + half


def curve_of(group: Group, key: str, plot: Plot, decay: float, x: X, name: str, look: int | None) -> Curve | None:
    """Return the log column `key` of a group of runs as a curve, the mean over its seeds.

    Return None if a run of the group lacks the column, or the runs share no iteration.

    Args:
        group: The runs to pool.
        key: The log column.
        plot: How the column is drawn.
        decay: Factor by which weights fall per iteration in the smoothing; 0 for none.
        x: Gives the x value of each iteration of a run.
        name: Name of the curve.
        look: Number of its colour and dash; None takes its place in the chart.
    """
    if not all(run.has(key) for run in group.runs):
        return None
    steps = group.runs[0].steps
    for run in group.runs[1:]:
        steps = np.intersect1d(steps, run.steps)
    if not len(steps):
        return None
    places = [np.searchsorted(run.steps, steps) for run in group.runs]
    raw = np.stack([run.column(key)[at] for run, at in zip(group.runs, places, strict=True)])
    spread = np.stack([run.column(plot.spread)[at] for run, at in zip(group.runs, places, strict=True)])
    across = np.mean([x(run)[at] for run, at in zip(group.runs, places, strict=True)], axis=0)
    dense = np.isfinite(raw).all(0)
    if dense.mean() < 0.6:  # measured now and then: what lies between is no gap
        raw, spread, across, steps = raw[:, dense], spread[:, dense], across[dense], steps[dense]
    decay = decay if plot.smooth else 0.0
    lines = np.stack([smoothed(row, steps, decay) for row in raw])
    low = high = None
    mean = lines[0]
    if group.n > 1:
        mean, low, high = band_of(lines)
    elif np.isfinite(spread).any():
        around = smoothed(spread[0], steps, decay)
        low, high = mean - around, mean + around
    where = buckets(len(steps), POINTS)
    alone = len(where) == len(steps)
    pick = [w[-1] if decay else w for w in where]  # a smoothed line is read off; what is not smoothed is averaged

    def picked(column: Column | None) -> list[float] | None:
        return None if column is None else [mean_of(column, np.atleast_1d(w)) for w in pick]

    behind = thin(across, raw.mean(0)) if decay or not alone else []
    at = [float(across[w[-1]]) for w in where]
    return Curve(name, at, picked(mean) or [], picked(low), picked(high), behind, look)


def limits_of(plot: Plot, groups: Sequence[Group]) -> list[tuple[str, float]]:
    """Return the limits of the drift gauge to draw in a plot, as (name, value).

    A limit that several runs share is there once.
    """
    if not plot.limit:
        return []
    by_limit: dict[float, list[str]] = {}
    for group in groups:
        limit = group.runs[0].setting(f"gauge.{plot.limit}")
        if isinstance(limit, int | float):
            by_limit.setdefault(float(limit), []).append(group.name)
    lines = []
    for limit, names in by_limit.items():
        name = "limit" if len(by_limit) == 1 else f"limit of {', '.join(names)}"
        both = (limit, -limit) if plot.limit == "exposure" else (limit,)
        lines += [(f"{'upper' if LIMITS[plot.limit][0] and v > 0 else 'lower'} {name}", v) for v in both]
    return lines


def chart_of(plot: Plot, title: str, curves: Sequence[Curve], groups: Sequence[Group], x: X, x_label: str) -> Chart:
    values = [v for curve in curves for v in curve.values if math.isfinite(v)]
    log = plot.log and sum(v > 0 for v in values) >= 0.8 * max(len(values), 1)
    runs = [run for group in groups for run in group.runs]
    longest = max(len(run.steps) for run in runs)
    size = math.ceil(longest / POINTS)
    shared = (
        f"A point stands for {size} iterations; the faint line keeps their smallest and largest." if size > 1 else ""
    )
    note = " ".join(part for part in (plot.note, shared) if part)
    reach = min(float(x(run)[0]) for run in runs), max(float(x(run)[-1]) for run in runs)
    return Chart(title, x_label, plot.unit, curves, note, log, limits_of(plot, groups), reach)


def charts_of(groups: Sequence[Group], decay: float, x: X, x_label: str) -> list[Chart]:
    """Return the charts of all groups of runs.

    A single group has one chart per plot, of all columns in it. Several groups have one chart per column, in which each
    group keeps its colour.

    Args:
        groups: The groups to draw.
        decay: Factor by which weights fall per iteration in the smoothing; 0 for none.
        x: Gives the x value of each iteration of a run.
        x_label: The label of the x axis.
    """
    charts = []
    for plot in plots_of([run for group in groups for run in group.runs]):
        bare = replace(plot, spread="", note="" if plot.spread else plot.note)  # the band is of seeds, or none
        if len(groups) == 1:
            drawn = bare if groups[0].n > 1 else plot
            drafts = [curve_of(groups[0], key, drawn, decay, x, name, None) for key, name in plot.keys.items()]
            if curves := [curve for curve in drafts if curve]:
                charts.append(chart_of(drawn, plot.title, curves, groups, x, x_label))
            continue
        for key, name in plot.keys.items():
            drafts = [curve_of(group, key, bare, decay, x, group.name, group.look) for group in groups]
            title = f"{plot.title}: {name}" if plot.named else plot.title
            if curves := [curve for curve in drafts if curve]:
                charts.append(chart_of(bare, title, curves, groups, x, x_label))
    return charts
