"""Make the report of one or several runs: everything in their folders, as one page and as plain data."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sage_grpo.report.compare import Group, changed, changed_on_resume, differing, grouped, presentable
from sage_grpo.report.cost import cost_of
from sage_grpo.report.curves import always_zero, charts_of
from sage_grpo.report.figures import HEAT_RUNS, alarms_of, heat_maps, last_of, trend_of
from sage_grpo.report.page import Chart, Headline, HeatMap, Page, Section
from sage_grpo.report.run_tables import (
    RunSummary,
    about,
    about_tables,
    alarm_parts,
    cost_tables,
    count,
    difference_table,
    final_tables,
    money,
    short,
    signed,
    throughput_tables,
)
from sage_grpo.report.strips import VideoSelection, choose
from sage_grpo.runs.read import Column, RunRecord, duration
from sage_grpo.runs.redact import clean_command, clean_text


@dataclass(frozen=True)
class Report:
    page: Page
    figures: dict[str, Any]


def make_report(
    runs: Sequence[RunRecord], *, price: float, smooth: float, megabytes: float, by_hours: bool = False
) -> Report:
    """Return the report of one or several runs.

    Args:
        runs: The runs to report.
        price: Price of one process hour, in dollars.
        smooth: Weight of the past in the exponential mean of a curve, per iteration, below 1; 0 for no smoothing.
        megabytes: Most megabytes of videos on the page.
        by_hours: Whether to draw curves over the hours of all processes instead of iterations.
    """
    groups, notices = grouped(runs)
    several = len(runs) > 1
    summaries = [RunSummary(run, cost_of(run, price), alarms_of(run), trend_of(run, "reward/mean")) for run in runs]
    hours = {t.run.name: t.cost.work / 3600 * t.cost.processes for t in summaries}

    def across(run: RunRecord) -> Column:
        return hours[run.name] if by_hours else run.steps

    logged = [group for group in groups if all(len(run.steps) for run in group.runs)]
    charts = charts_of(logged, smooth, across, "process hours" if by_hours else "iteration")
    close = [group.runs[0] for group in groups]  # of several seeds, one is looked at closely
    maps, videos = heat_maps(close), choose(close, megabytes)
    notices += [
        f"{group.name} is drawn to the end of its shortest run, iteration {group.shortest}."
        for group in groups
        if group.shortest < max(run.iterations for run in group.runs)
    ]
    notices += [text for t in summaries for text in notices_of(t, several)]
    times = [*cost_tables(summaries), *throughput_tables(summaries)]
    page = Page(
        title=f"{len(runs)} runs compared" if several else f"Run {runs[0].name}",
        summary=summary_of(summaries, groups),
        headlines=[] if several else headlines_of(summaries[0]),
        notices=notices,
        sections=[
            Section("changed", "What changed", [difference_table(runs)] if several else []),
            Section("numbers", "Final numbers", final_tables(summaries, groups) if several else []),
            Section("curves", "Curves", charts, curves_note(groups, smooth, always_zero(runs), drawn=bool(charts))),
            Section("timesteps", "Timestep by timestep", maps, heat_note(groups) if maps else ""),
            Section("videos", "Videos over time", videos.strips, videos.note),
            Section("alarms", "Alarms", *alarm_parts(summaries)),
            Section("cost", "Time and cost", times, cost_note(summaries)),
            Section("run", "The runs" if several else "The run", about_tables(summaries)),
        ],
        footer=commands_of(runs),
    )
    return Report(page, figures_of(summaries, groups, page, videos))


def summary_of(summaries: Sequence[RunSummary], groups: Sequence[Group]) -> str:
    if len(summaries) == 1:
        facts = about(summaries[0])
        return (
            f"{facts['state']}.\n\nRecipe {facts['recipe']}, seed {facts['seed']}, {facts['processes']}. "
            f"Started {facts['started']}, last line {facts['last line']}. {facts['versions']}; commit "
            f"{facts['commit']}."
        )
    pooled = [g for g in groups if g.n > 1]
    states = ". ".join(f"{t.run.name}: {t.run.state[1][0].lower()}{t.run.state[1][1:]}" for t in summaries)
    seeds = " ".join(f"{g.name} pools {', '.join(r.name for r in g.runs)}." for g in pooled)
    return f"{states}.\n\n{seeds}"


def notices_of(t: RunSummary, several: bool) -> list[str]:
    """Return a sentence for everything that is odd in a run's folder: unreadable lines, settings changed on a resume.

    If the report is on `several` runs, each sentence begins with the name of the run.
    """
    run, notices = t.run, []
    who = f"{run.name}: " if several else ""
    if run.torn:
        lines = count(run.torn, "line")
        notices.append(f"{who}{lines} of metrics.jsonl could not be read, torn or just being written: left out.")
    if changes := changed_on_resume(run):
        words = "; ".join(f"{key}: {a} → {b}" for key, (a, b) in changes.items())
        notices.append(f"{who}settings changed when the run was resumed. {words}.")
    return notices


def headlines_of(t: RunSummary) -> list[Headline]:
    reward, cost = t.reward, t.cost
    among = f"± {short(reward.first_std, 2)} and ± {short(reward.last_std, 2)} among them"
    kinds = ", ".join(sorted({alarm.measure for alarm in t.alarms})) or "no limit of the drift gauge was crossed"
    took = f"{count(cost.processes, 'process')}, {short(cost.hours)} hours in all"
    return [
        Headline(
            "Reward of the rollouts",
            f"{signed(reward.first)} → {signed(reward.last)}",
            f"means of the first and last {count(reward.window, 'iteration')}; {among}",
        ),
        Headline("Iterations", f"{t.run.iterations} of {t.run.wanted}", t.run.state[0]),
        Headline("Time at work", duration(cost.seconds), took),
        Headline("Cost", money(cost.total), f"at {money(cost.price)} an hour of a process"),
        Headline("Alarms", str(len(t.alarms)) if t.alarms else "none", kinds),
    ]


def curves_note(groups: Sequence[Group], smooth: float, zero: Sequence[str], *, drawn: bool) -> str:
    if not drawn:
        return "No iteration is logged yet."
    words = []
    if smooth:
        words.append(f"Lines are exponential means with weight {smooth:g} an iteration, faint lines the logged values.")
    if sizes := sorted({group.n for group in groups if group.n > 1}):
        bands = sorted({"their range" if n == 2 else "the 95 % interval of the mean by Student's t" for n in sizes})
        n = ", ".join(map(str, sizes))
        words.append(f"Runs that differ by seed are pooled (n = {n}): mean with {' or '.join(bands)} as band.")
    words += [f"Always 0, so not drawn: {', '.join(zero)}."] if zero else []
    return " ".join(words)


def heat_note(groups: Sequence[Group]) -> str:
    left = f" Of {len(groups)} runs, the first {HEAT_RUNS} are shown." if len(groups) > HEAT_RUNS else ""
    if any(group.n > 1 for group in groups):
        left += " Of runs that differ by seed, the first is shown, here and in the videos."
    empty = "an empty cell was not trained on in that iteration"
    return f"Bright is large. Maps of one kind share their colours; {empty}.{left}"


def cost_note(summaries: Sequence[RunSummary]) -> str:
    each = ", ".join(dict.fromkeys(count(t.cost.processes, "process") for t in summaries))
    return (
        f"{each} × time at work × {money(summaries[0].cost.price)} an hour (--price). Work that a kill undid and the "
        "run did again is not in the log, so it is not in the sum."
    )


def commands_of(runs: Sequence[RunRecord]) -> str:
    lines = []
    for run in runs:
        words = [str(w) for w in (run.environments[0].get("command") or [])] if run.environments else []
        lines += [" ".join(["sage-grpo", *clean_command(words[1:])])] if words else []
    return "\n".join([*lines, "sage-grpo report " + " ".join(clean_text(str(run.folder)) for run in runs)])


def figures_of(
    summaries: Sequence[RunSummary], groups: Sequence[Group], page: Page, videos: VideoSelection
) -> dict[str, Any]:
    """Return the numbers, curves and heat maps of the report as plain data, for programs."""
    runs = [t.run for t in summaries]
    items = [item for section in page.sections for item in section.items]
    return {
        "runs": [
            {
                "name": t.run.name,
                "folder": str(t.run.folder),
                "state": t.run.state[0],
                "why": t.run.state[1],
                "iterations": t.run.iterations,
                "wanted": t.run.wanted,
                "seed": t.run.seed,
                "torn_lines": t.run.torn,
                "reward": asdict(t.reward) | {"change": t.reward.change},
                "seconds": t.cost.seconds,
                "hours": t.cost.hours,
                "cost": t.cost.total,
                "phases": t.cost.phases,
                "gaps": [asdict(g) for g in t.cost.gaps],
                "alarms": [asdict(a) for a in t.alarms],
                "changed": {key: presentable(key, t.run.settings[key]) for key in changed(t.run)},
                "last": {key: last_of(t.run, key) for key in t.run.columns if not key.startswith("steps/")},
            }
            for t in summaries
        ],
        "differ": {key: {run.name: presentable(key, run.setting(key)) for run in runs} for key in differing(runs)},
        "groups": {group.name: [run.name for run in group.runs] for group in groups},
        "curves": {
            c.title: {k.name: {"steps": k.steps, "values": k.values, "low": k.low, "high": k.high} for k in c.curves}
            for c in items
            if isinstance(c, Chart)
        },
        "heat": {
            h.title: {"timesteps": h.steps, "first": h.first, "last": h.last, "cells": h.cells.tolist()}
            for h in items
            if isinstance(h, HeatMap)
        },
        "videos": [str(path) for path in videos.files],
        "notices": list(page.notices),
    }
