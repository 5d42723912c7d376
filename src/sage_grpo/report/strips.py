"""Choose the sample videos of a report: which iterations and prompts, within a size that a page can carry."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sage_grpo.report.page import Clip, VideoStrip
from sage_grpo.runs.read import RunRecord

COLUMNS, PROMPTS, CLIPS = 6, 6, 72  # at most
Rows = list[tuple[RunRecord, list[tuple[int, Path]]]]  # a run with its files by iteration


@dataclass(frozen=True)
class VideoSelection:
    strips: list[VideoStrip]
    note: str
    files: list[Path]


def evenly(values: Sequence[int], most: int) -> list[int]:
    """Return at most `most` of the values: the first, the last, and others spread evenly between them."""
    if len(values) <= most:
        return list(values)
    return [values[i] for i in np.linspace(0, len(values) - 1, most).round().astype(int)]


def subjects(run: RunRecord) -> dict[tuple[str, int], int]:
    """Return the number of each sample video of a run, as in its file name, by (prompt, seed)."""
    count = max((len(videos) for videos in run.samples.values()), default=0)
    return {(run.prompts[i] if i < len(run.prompts) else f"video {i}", i): i for i in range(count)}


def file_of(run: RunRecord, iteration: int, number: int) -> Path | None:
    path = next((p for p in run.samples.get(iteration, ()) if p.stem == f"{number:02d}"), None)
    return path if path and path.is_file() else None


def rows_of(runs: Sequence[RunRecord], subject: tuple[str, int], iterations: Sequence[int]) -> Rows:
    """Return the videos of one prompt and seed: a row for each run that has any, with its files by iteration."""
    rows = []
    for run in runs:
        number = subjects(run).get(subject)
        files = [(i, path) for i in iterations if number is not None and (path := file_of(run, i, number))]
        rows += [(run, files)] if files else []
    return rows


def choose(runs: Sequence[RunRecord], megabytes: float) -> VideoSelection:
    """Choose the sample videos for a page: as many prompts and iterations as fit into `megabytes` and 72 videos.

    If not all fit, prompts are left out first, down to two, and then iterations, down to two. Only then are more
    prompts left out.
    """
    runs = [run for run in runs if run.samples]
    if not runs:
        return VideoSelection(
            [], "No sample videos: the run made none (run.sample_every=0) or its folder came without them.", []
        )
    shared = sorted(set.intersection(*(set(run.samples) for run in runs)))
    every = shared or sorted(set.union(*(set(run.samples) for run in runs)))
    runs_with: dict[tuple[str, int], int] = {}
    for run in runs:
        for subject in subjects(run):
            runs_with[subject] = runs_with.get(subject, 0) + 1
    most = max(runs_with.values())
    common = [subject for subject in runs_with if runs_with[subject] == most]
    prompts, columns = min(PROMPTS, len(common)), min(COLUMNS, len(every))
    while True:
        iterations = evenly(every, columns)
        plan = {subject: rows_of(runs, subject, iterations) for subject in common[:prompts]}
        files = [path for rows in plan.values() for _, clips in rows for _, path in clips]
        size = sum(path.stat().st_size for path in files) / 1e6
        if (size <= megabytes and len(files) <= CLIPS) or not files:
            break
        if prompts > 2 or columns <= 2:
            prompts -= 1
        else:
            columns -= 1
    note = f"{len(iterations)} of {len(every)} iterations and {len(plan)} of {len(common)} prompts, {size:.1f} MB"
    if len(plan) < len(common) or len(iterations) < len(every):
        note += f"; a page holds at most {CLIPS} videos and {megabytes:g} MB (--megabytes). All are in the run's folder"
    if most < len(runs):
        note += f". No prompt was sampled by all {len(runs)} runs: shown are those of {most}"
    elif len(common) < len(runs_with):
        note += f". {len(runs_with) - len(common)} more prompts were sampled by some of the runs only"
    strips = [strip(*subject, rows, named=len(runs) > 1) for subject, rows in plan.items() if rows]
    return VideoSelection(strips, f"Always the same prompt and seed, so that only the policy changes. {note}.", files)


def strip(prompt: str, seed: int, rows: Rows, *, named: bool) -> VideoStrip:
    clips = [
        (run.name if named else "", [Clip(f"iteration {i}", path.read_bytes()) for i, path in files])
        for run, files in rows
    ]
    return VideoStrip(f"{prompt} · seed {seed}", clips)
