"""Compute the numbers that a report shows of a run: the trend of the reward, alarms and heat maps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import ValidationError

from sage_grpo.config import GaugeConfig
from sage_grpo.report.heat import Grid, HeatMap, gather, span_of
from sage_grpo.runs.alarms import LIMITS, crossed
from sage_grpo.runs.read import RunRecord

ROWS = 100  # timesteps in a heat map
HEAT_RUNS = 4  # runs with heat maps
# series of the log, title, unit, logarithmic, and which of them share one range of colours
MAPS = (
    ("gradient_raw", "Gradient of each timestep", "gradient before the equalizer", True, "gradient"),
    ("gradient_equalized", "The same after the equalizer", "gradient after the equalizer", True, "gradient"),
    ("log_ratio_rms", "Spread of the ratio", "root mean square of the log-ratio", True, "ratio"),
    ("clip_frac", "Clip fraction", "share of samples that were clipped", False, "clip"),
)


@dataclass(frozen=True)
class Trend:
    """The values of a log column at the start and at the end of a run: means over `window` iterations at each end.

    The standard deviations are over the same iterations.
    """

    first: float
    first_std: float
    last: float
    last_std: float
    window: int

    @property
    def change(self) -> float:
        return self.last - self.first


def trend_of(run: RunRecord, key: str) -> Trend:
    """Return the trend of the log column `key`: its mean over the first and over the last fifth of its values.

    At each end, ten values at most are used. The means are nan if the run has no finite value.
    """
    values = run.column(key)
    values = values[np.isfinite(values)]
    if not len(values):
        return Trend(math.nan, math.nan, math.nan, math.nan, 0)
    window = max(1, min(10, len(values) // 5))
    head, tail = values[:window], values[-window:]
    return Trend(float(head.mean()), float(head.std()), float(tail.mean()), float(tail.std()), window)


def last_of(run: RunRecord, key: str) -> float:
    values = run.column(key)
    values = values[np.isfinite(values)]
    return float(values[-1]) if len(values) else math.nan


@dataclass(frozen=True)
class Alarms:
    """A limit of the drift gauge that stayed crossed from the iteration `first` to `last`.

    `times` is the number of measurements in between, and `worst` the value farthest beyond the limit.
    """

    measure: str
    first: int
    last: int
    times: int
    limit: float
    worst: float
    text: str


def gauge_of(run: RunRecord) -> GaugeConfig:
    limits = {
        name: run.settings[f"gauge.{name}"] for name in GaugeConfig.model_fields if f"gauge.{name}" in run.settings
    }
    try:
        return GaugeConfig(**limits)
    except ValidationError:  # of another version
        return GaugeConfig()


def beyond(value: float, limit: float) -> float:
    return abs(abs(value) - limit)  # brightness may leave on either side


def alarms_of(run: RunRecord) -> list[Alarms]:
    """Return the alarms of the drift gauge in a run, the earliest first.

    They are computed from the gauge's measures in the log and the limits in the run's recipe.
    """
    gauge = gauge_of(run)
    measured = {name: run.column(f"drift/{name}") for name in LIMITS if run.has(f"drift/{name}")}
    open_now: dict[str, Alarms] = {}
    done = []
    for i in np.flatnonzero(np.any([np.isfinite(c) for c in measured.values()], axis=0)) if measured else ():
        step = int(run.steps[i])
        ringing = {
            a.measure: a for a in crossed(gauge, {n: float(c[i]) for n, c in measured.items() if np.isfinite(c[i])})
        }
        done += [open_now.pop(name) for name in list(open_now) if name not in ringing]
        for name, alarm in ringing.items():
            before = open_now.get(name)
            worst, text = alarm.value, alarm.text
            if before and beyond(before.worst, alarm.limit) >= beyond(worst, alarm.limit):
                worst, text = before.worst, before.text
            first, times = (before.first, before.times + 1) if before else (step, 1)
            open_now[name] = Alarms(name, first, step, times, alarm.limit, worst, text)
    return sorted([*done, *open_now.values()], key=lambda a: (a.first, a.measure))


def grid_of(run: RunRecord, series: str) -> tuple[list[int], Grid] | None:
    """Return the timesteps of a log series, and its values (timesteps, iterations); None if the run has not logged it.

    If there are more than 100 timesteps, 100 are chosen evenly.
    """
    keys = sorted(key for key in run.columns if key.startswith(f"steps/{series}/") and key.rsplit("/")[-1].isdigit())
    if not keys or not len(run.steps):
        return None
    keys = [keys[i] for i in np.unique(np.linspace(0, len(keys) - 1, min(ROWS, len(keys))).round().astype(int))]
    return [int(key.rsplit("/")[-1]) for key in keys], np.stack([run.columns[key] for key in keys])


def heat_maps(runs: Sequence[RunRecord]) -> list[HeatMap]:
    """Return a heat map per kind of value and run, for the first four runs.

    Heat maps of comparable values share their range of colours.
    """
    drafts = []
    for series, title, unit, log, kind in MAPS:
        for run in runs[:HEAT_RUNS]:
            if grid := grid_of(run, series):
                cells, first, last = gather(grid[1], run.steps)
                name = title if len(runs) == 1 else f"{title}: {run.name}"
                drafts.append((kind, HeatMap(name, grid[0], first, last, cells, 0.0, 1.0, unit, "", log)))
    maps = []
    for kind, draft in drafts:
        low, high = span_of([d.cells for k, d in drafts if k == kind], draft.log)
        size = draft.last[0] - draft.first[0] + 1
        note = f"A column is the mean of {size} iterations. " if size > 1 else ""
        if draft.log and (np.nan_to_num(draft.cells, nan=1.0) <= 0).any():
            note += "Zero has the darkest colour. "
        maps.append(
            HeatMap(
                draft.title,
                draft.steps,
                draft.first,
                draft.last,
                draft.cells,
                low,
                high,
                draft.unit,
                note.strip(),
                draft.log,
            )
        )
    return maps
