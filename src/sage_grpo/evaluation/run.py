"""Run `sage-grpo eval` from end to end: videos, scores, results, table and page. A call that was stopped continues."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sage_grpo.config import ConfigError, RewardConfig
from sage_grpo.distributed.processes import Processes, join, launched
from sage_grpo.evaluation import manifest
from sage_grpo.evaluation.page import make_page
from sage_grpo.evaluation.prompts import Task
from sage_grpo.evaluation.results import EvaluationResults, SourceSummary, as_array, compute, with_overall
from sage_grpo.evaluation.scorers import Scorers
from sage_grpo.evaluation.scores import (
    build_scorers,
    check_weights,
    choose_scorers,
    collect,
    columns,
    score_task,
    weighed,
)
from sage_grpo.evaluation.sources import Candidate, differences_in_sampling
from sage_grpo.evaluation.table import markdown
from sage_grpo.evaluation.videos import Folder, make_videos, missing_videos, refuse_sizes
from sage_grpo.files import atomic_write, write_json
from sage_grpo.progress import EmitProgress, Progress, no_progress
from sage_grpo.report.page import write_page

DAY = 24 * 60.0  # minutes that processes wait for the slowest


@dataclass(frozen=True)
class EvaluationPlan:
    """The plan of an evaluation: sources, prompts, seeds, scorers and the folder to write."""

    candidates: Sequence[Candidate]  # the first is what the others are compared with
    tasks: Sequence[Task]
    seeds: Sequence[int]
    out: Path
    scorers: Sequence[RewardConfig] = ()
    average: bool = True
    retry: bool = False
    command: str = ""
    weights: Mapping[str, float] | None = None  # of the overall score; none: those of the first recipe


def meet(device: str = "auto") -> Processes | None:
    """Join the other processes of torchrun; return None if this process is alone.

    Each process loads whole models and takes prompts of its own: nothing is sharded.
    """
    return join(launched(), 1, 1, device, minutes=DAY)


def evaluate(
    plan: EvaluationPlan, progress: Progress = no_progress, processes: Processes | None = None
) -> EvaluationResults | None:
    """Make the videos of a plan, score them, write all files, and return the results.

    Videos and scores that the folder already has are reused. The first process writes results.json, table.md and
    report.html, and returns the results. Other processes return None.

    Args:
        plan: What to compare, and where to write.
        progress: Shows the progress of making and of scoring videos.
        processes: The processes that share the work, from `meet`; None for one process.

    Raises:
        ConfigError: Scorers or weights do not fit, videos differ in size, or no video has any score.
    """
    rank, world = (processes.replica, processes.num_replicas) if processes else (0, 1)
    mine = plan.tasks[rank::world]
    folder = Folder(plan.out)
    entries, trained = choose_scorers(plan.candidates, plan.scorers)  # mistakes come before hours of work
    check_weights(plan.weights or {}, entries)
    if rank == 0:
        sources = [candidate.name for candidate in plan.candidates]
        write_json(plan.out / manifest.NAME, manifest.Manifest(sources, plan.tasks, plan.seeds).to_json())
    with progress("videos") as emit:
        _make(plan, folder, mine, emit, processes)
    scorers = build_scorers(entries, trained, plan.candidates)
    scorers = weighed(scorers, plan.weights) if plan.weights else scorers
    todo = [(candidate, task) for candidate in plan.candidates for task in mine]
    with progress("scoring") as emit:
        for i, (candidate, task) in enumerate(todo):
            emit(i, len(todo), f"{candidate.name}: {task.short}")
            score_task(folder, candidate.name, task, plan.seeds, scorers, retry=plan.retry)
    if processes:
        processes.everybody(None)  # all scores are in the folder
    return _finish(plan, folder, scorers) if rank == 0 else None


def _make(
    plan: EvaluationPlan, folder: Folder, mine: Sequence[Task], emit: EmitProgress, processes: Processes | None
) -> None:
    todo = {c.name: missing_videos(folder, c, mine, plan.seeds) for c in plan.candidates}
    total, done = sum(map(len, todo.values())), 0  # what is there already tells nothing of the time left
    overrides = [f"tuning.device={processes.device}"] if processes else []

    def count(now: str) -> None:
        nonlocal done
        emit(done, total, now)
        done += 1

    for candidate in plan.candidates:
        make_videos(
            folder,
            candidate,
            todo[candidate.name],
            count,
            average=plan.average,
            overrides=overrides,
            after_first=lambda: refuse_sizes(folder, plan.candidates, mine, plan.seeds),
        )
    refuse_sizes(folder, plan.candidates, mine, plan.seeds)


def _finish(plan: EvaluationPlan, folder: Folder, scorers: Scorers) -> EvaluationResults:
    scores = columns(scorers)
    values, masked = {}, {}
    for candidate in plan.candidates:
        rows, masked[candidate.name] = collect(folder, candidate.name, plan.tasks, plan.seeds, scorers)
        arrays = {key: as_array(table) for key, table in rows.items()}
        values[candidate.name] = with_overall(arrays, scores)
    if all(np.isnan(array).all() for arrays in values.values() for array in arrays.values()):
        reason = next((why for by_score in masked.values() for reasons in by_score.values() for why in reasons), "")
        raise ConfigError(f"no video has any score: {reason}")
    figures = compute(values, scores, plan.tasks)
    results = EvaluationResults(
        figures.means,
        figures.comparisons,
        figures.tags,
        reference=plan.candidates[0].name,
        sources={c.name: _summary(c) for c in plan.candidates},
        prompts=len(plan.tasks),
        seeds=list(plan.seeds),
        scores=scores,
        note=differences_in_sampling(plan.candidates),
        masked={
            name: {key: reasons for key, reasons in by_score.items() if reasons} for name, by_score in masked.items()
        },
    )
    write_json(plan.out / "results.json", results.to_json())
    atomic_write(plan.out / "table.md", markdown(results).encode())
    write_page(make_page(results, values, plan.tasks, plan.seeds, folder, plan.command), plan.out / "report.html")
    return results


def _summary(candidate: Candidate) -> SourceSummary:
    sampling, model = candidate.config.sampling, candidate.config.model.type
    return SourceSummary(
        candidate.checkpoint, model, sampling.steps, sampling.shift, candidate.identity, sampling.order
    )
