"""The tables of a run's report: settings that differ, final numbers, alarms, cost, and what ran."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sage_grpo.report.compare import Group, cell, changed, differing, value_text
from sage_grpo.report.cost import Cost
from sage_grpo.report.curves import band_of
from sage_grpo.report.figures import Alarms, Trend, last_of
from sage_grpo.report.page import Details, PageTable
from sage_grpo.runs.read import DEFAULTS, RunRecord, duration, when
from sage_grpo.runs.redact import clean_recipe

MOST_ALARMS, MOST_GAPS = 50, 20  # rows
ENDS = {"kl/penalty": "KL", "clip_frac": "clipped", "drift/base_error": "base error", "drift/diversity": "diversity"}
PHASES = {"rollout": "rollouts, rewards and gauge", "update": "updates", "between": "samples, checkpoints, start"}


@dataclass(frozen=True)
class RunSummary:
    """A run with its cost, its alarms and the trend of its reward."""

    run: RunRecord
    cost: Cost
    alarms: list[Alarms]
    reward: Trend


def short(value: float, digits: int = 3) -> str:
    return "–" if not math.isfinite(value) else f"{value:.{digits}g}".replace("-", "−")


def signed(value: float) -> str:
    return "–" if not math.isfinite(value) else f"{value:+.2f}".replace("-", "−")


def money(value: float) -> str:
    return f"${value:,.2f}"


def count(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word}{'es' if word.endswith('s') else 's'}"


def difference_table(runs: Sequence[RunRecord]) -> PageTable:
    keys = differing(runs)
    rows = [[key, *(cell(run, key) for run in runs)] for key in keys]
    if not rows:
        rows = [["none", *("–" for _ in runs)]]
    return PageTable(
        "Settings that differ",
        ["setting", *(run.name for run in runs)],
        rows,
        "All other settings are equal; folders are not compared.",
    )


def final_tables(summaries: Sequence[RunSummary], groups: Sequence[Group]) -> list[PageTable]:
    header = ["run", "iterations", "reward first", "reward last", "change", *ENDS.values(), "alarms", "hours", "cost"]
    rows = []
    for t in summaries:
        reward = [signed(value) for value in (t.reward.first, t.reward.last, t.reward.change)]
        ends = [short(last_of(t.run, key)) for key in ENDS]
        rest = [str(len(t.alarms)), short(t.cost.hours), money(t.cost.total)]
        rows.append([t.run.name, str(t.run.iterations), *reward, *ends, *rest])
    note = "Reward: means of a fifth of the iterations at each end, ten at most. Others: the last value."
    tables = [PageTable("Each run at its end", header, rows, note)]
    pooled = [group for group in groups if group.n > 1]
    return [*tables, seeds_table(summaries, pooled)] if pooled else tables


def seeds_table(summaries: Sequence[RunSummary], pooled: Sequence[Group]) -> PageTable:
    trends = {t.run.name: t.reward for t in summaries}
    rows = []
    for group in pooled:
        sides = [[trends[run.name].first, trends[run.name].last, trends[run.name].change] for run in group.runs]
        ends = zip(*band_of(np.array(sides)), strict=True)
        cells = [f"{signed(mean)} [{signed(low)}, {signed(high)}]" for mean, low, high in ends]
        rows.append([group.name, str(group.n), *cells])
    note = "Means over seeds with 95 % intervals by Student's t; of two seeds, their range."
    return PageTable("Over seeds", ["runs", "n", "reward first", "reward last", "change"], rows, note)


def alarm_parts(summaries: Sequence[RunSummary]) -> tuple[list[PageTable], str]:
    """Return the table of crossed limits of the drift gauge, and a note.

    If no limit was crossed, there is no table, and the note says so or that nothing was measured. Otherwise the note is
    empty.
    """
    alarms = [(t.run.name, alarm) for t in summaries for alarm in t.alarms]
    if not alarms:
        measured = any(key.startswith("drift/") for t in summaries for key in t.run.columns)
        return [], "No limit of the drift gauge was crossed." if measured else "The drift gauge measured nothing."
    rows = []
    for name, a in alarms[:MOST_ALARMS]:
        iterations = f"{a.first}–{a.last}" if a.last > a.first else str(a.first)
        row = [iterations, a.measure, a.text, short(a.limit), short(a.worst), str(a.times)]
        rows.append([name, *row] if len(summaries) > 1 else row)
    header = ["iteration", "measure", "what, at its worst", "limit", "worst value", "measurements"]
    left = f" The first {MOST_ALARMS} of {len(alarms)}." if len(alarms) > MOST_ALARMS else ""
    note = f"From the measures in the log and the limits in the recipe; an unbroken stretch is one row.{left}"
    header = ["run", *header] if len(summaries) > 1 else header
    return [PageTable("Limits of the drift gauge that were crossed", header, rows, note)], ""


def cost_tables(summaries: Sequence[RunSummary]) -> list[PageTable]:
    def cells(t: RunSummary, seconds: float) -> list[str]:
        hours = seconds / 3600 * t.cost.processes
        return [duration(seconds), short(hours), money(hours * t.cost.price)]

    header = ["wall time", "process hours", "cost"]
    if len(summaries) == 1:
        parts = [*summaries[0].cost.phases.items(), ("all", summaries[0].cost.seconds)]
        rows = [[PHASES.get(name, name), *cells(summaries[0], seconds)] for name, seconds in parts]
        tables = [PageTable("Time at work", ["phase", *header], rows)]
    else:
        phases = list(dict.fromkeys(name for t in summaries for name in t.cost.phases))
        rows = []
        for t in summaries:
            times = [duration(t.cost.phases[name]) if name in t.cost.phases else "–" for name in phases]
            rows.append([t.run.name, *times, *cells(t, t.cost.seconds)])
        tables = [PageTable("Time at work", ["run", *(PHASES.get(name, name) for name in phases), *header], rows)]
    gaps = [[t.run.name, str(g.before), duration(g.seconds), g.why] for t in summaries for g in t.cost.gaps]
    if gaps:
        left = f"The first {MOST_GAPS} of {len(gaps)}. " if len(gaps) > MOST_GAPS else ""
        tables.append(
            PageTable(
                "Pauses that are not counted", ["run", "before iteration", "length", "why"], gaps[:MOST_GAPS], left
            )
        )
    return tables


def throughput_tables(summaries: Sequence[RunSummary]) -> list[PageTable]:
    """Return the table of how well the machines were used, with a column per run.

    The list is empty if no run has logged its throughput.
    """
    listed = [throughput_of(t.run) for t in summaries]
    names = list(dict.fromkeys(name for cells in listed for name in cells))
    rows = [[name, *(cells.get(name, "–") for cells in listed)] for name in names]
    note = (
        "Goodput: share of the wall time since the first start that is in finished iterations. MFU: planned FLOPs "
        "over the peak of the GPUs. Processes wait for each other, so a slow GPU may show in another phase."
    )
    return [PageTable("Use of the machines", ["measure", *(t.run.name for t in summaries)], rows, note)] if rows else []


def throughput_of(run: RunRecord) -> dict[str, str]:
    """Return a run's goodput, MFU, peak memory and slowest processes, as text, by name.

    Only what the run has logged is included.
    """
    cells: dict[str, str] = {}
    if run.has("speed/goodput"):
        goodput = run.column("speed/goodput")
        cells["goodput"] = f"{goodput[np.isfinite(goodput)][-1]:.0%}"
    if run.has("speed/mfu"):
        cells["MFU, median"] = f"{np.nanmedian(run.column('speed/mfu')):.1%}"
    if run.has("speed/peak_memory"):
        cells["peak memory of a device"] = f"{np.nanmax(run.column('speed/peak_memory')) / 1e9:.1f} GB"
    for key in run.columns:
        if key.startswith("speed/late/") and run.has(key):
            phase = key.removeprefix("speed/late/")
            ranks = run.column(f"speed/late_rank/{phase}")
            numbers, times = np.unique(ranks[np.isfinite(ranks)], return_counts=True)
            if not len(times):
                continue
            rank, share = int(numbers[times.argmax()]), times.max() / times.sum()
            late = short(float(np.nanmedian(run.column(key))))
            cells[f"slowest in {phase}"] = f"{late} s over the median; most often process {rank} ({share:.0%})"
    return cells


def about_tables(summaries: Sequence[RunSummary]) -> list[PageTable | Details]:
    rows = [[name, *(about(t)[name] for t in summaries)] for name in about(summaries[0])]
    parts: list[PageTable | Details] = [PageTable("What ran", ["what", *(t.run.name for t in summaries)], rows)]
    if len(summaries) == 1:
        run = summaries[0].run
        listed = [
            [key, value_text(key, run.settings[key]), value_text(key, DEFAULTS[key]) if key in DEFAULTS else "–"]
            for key in changed(run)
        ]
        parts.append(PageTable("Settings that are not the defaults", ["setting", "value", "default"], listed))
    return [*parts, *(Details(f"The whole recipe of {t.run.name}", clean_recipe(t.run.recipe)) for t in summaries)]


def about(t: RunSummary) -> dict[str, str]:
    run = t.run
    facts: dict[str, Any] = dict(run.environments[-1]) if run.environments else {}
    command = [str(word) for word in facts.get("command") or []]
    packages = facts.get("packages") or {}
    devices = ", ".join(dict.fromkeys(map(str, facts.get("devices") or ["?"])))
    return {
        "recipe": command[command.index("train") + 1] if "train" in command[:-1] else "–",
        "state": run.state[1],
        "started": when(run.starts[0]) if run.starts else "–",
        "last line": when(run.times[-1]) if len(run.times) and math.isfinite(run.times[-1]) else "–",
        "starts": str(len(run.environments) or 1),
        "seed": value_text("seed", run.seed),
        "processes": f"{count(run.processes, 'process')} on {devices}",
        "versions": ", ".join(
            [
                f"sage-grpo {facts.get('sage_grpo', '?')}",
                f"python {facts.get('python', '?')}",
                *(f"{name} {packages[name]}" for name in ("torch", "diffusers") if name in packages),
            ]
        ),
        "commit": str(facts.get("git_commit") or "–"),
    }
