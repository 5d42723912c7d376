"""Compute the cost of a run: the time at work, the pauses that are not counted, and the price."""

from dataclasses import dataclass, field

import numpy as np

from sage_grpo.runs.read import Column, RunRecord

MUCH_LONGER = 10.0  # times the usual time of such an iteration
SHORTEST_GAP = 60.0  # seconds; less may be a slow disk


@dataclass(frozen=True)
class Gap:
    """A pause before the iteration `before`, which is not counted as work."""

    before: int
    seconds: float
    why: str


@dataclass(frozen=True)
class Cost:
    """The time at work and the price of a run.

    `seconds` is the wall time at work. `hours` and `total` are sums over all processes, and `price` is that of one
    process hour.
    """

    seconds: float
    processes: int
    price: float
    phases: dict[str, float] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()
    work: Column = field(default_factory=lambda: np.zeros(0))  # seconds at work up to each logged iteration

    @property
    def hours(self) -> float:
        return self.seconds / 3600 * self.processes

    @property
    def total(self) -> float:
        return self.hours * self.price


def usual(spans: Column, sampled: Column) -> Column:
    """Return, for each iteration, the median seconds of all iterations of its kind: with or without sample videos.

    If fewer than three of a kind have a known time, it is the median of all iterations.

    Args:
        spans: Seconds of each iteration.
        sampled: Above 0 for iterations that also make sample videos.
    """
    out = np.zeros(len(spans))
    for kind in (sampled > 0, sampled == 0):
        known = spans[kind & np.isfinite(spans)]
        out[kind] = np.median(known) if len(known) >= 3 else np.nanmedian(spans) if np.isfinite(spans).any() else 0.0
    return out


def cost_of(run: RunRecord, price: float) -> Cost:
    """Return the cost of a run, from the times at which its iterations were logged and the run was started or resumed.

    Work that was lost when the run was killed is in no log, so it is not counted. `price` is that of one process hour.
    """
    if not len(run.steps):
        return Cost(0.0, run.processes, price)
    spans = np.diff(run.times, prepend=run.starts[0] if run.starts else np.nan)
    every = run.setting("run.sample_every") or 0
    typical = usual(spans, (run.steps % every == 0).astype(float) if every else np.zeros(len(spans)))
    gaps = []
    for i, span in enumerate(spans):
        begun = run.times[i - 1] if i else -np.inf
        restarts = [s for s in run.starts if begun < s < run.times[i]] if i else []
        if restarts:  # from the last line to the new start nobody worked
            spans[i] = run.times[i] - restarts[-1]
            gaps.append(Gap(int(run.steps[i]), restarts[-1] - begun, "the run was resumed"))
        elif i and span > max(MUCH_LONGER * typical[i], SHORTEST_GAP + typical[i]):
            spans[i] = typical[i]
            gaps.append(Gap(int(run.steps[i]), span - typical[i], "much longer than usual"))
        elif not span >= 0:  # no time was logged, or a clock went back
            spans[i] = typical[i]
    work = np.cumsum(spans)
    phases = {
        key.removeprefix("seconds/"): float(np.nansum(run.columns[key]))
        for key in run.columns
        if key.startswith("seconds/")
    }
    if phases:
        phases["between"] = max(float(work[-1]) - sum(phases.values()), 0.0)
    return Cost(float(work[-1]), run.processes, price, phases, tuple(gaps), work)
