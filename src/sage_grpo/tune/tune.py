"""`sage-grpo tune`: a search for the settings of a recipe that earn the most reward, much cheaper than a full grid."""

import json
import math
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Event, current_thread, main_thread
from typing import Any

import torch

from sage_grpo.config import ConfigError, RecipeConfig, dump_recipe, load_recipe
from sage_grpo.distributed.device import HOST, choose_device
from sage_grpo.files import atomic_write, write_json
from sage_grpo.progress import Emit, Progress, no_progress
from sage_grpo.tune.candidates import make_candidates, settings_of
from sage_grpo.tune.halving import KEEP, Rung, Scores, best, cost, rungs, search, whole_within
from sage_grpo.tune.lock import locked
from sage_grpo.tune.runs import CandidateRun

SEARCH, RESULT, BEST, RUNS = "search.json", "tune.json", "best.yaml", "runs"
LEAST = 2  # iterations of the first rung: fewer are noise
TIMED = 3  # iterations by which hours become passes
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Tried:
    """The result of one candidate: how far it ran, which rewards it reached, and why it failed, if it did."""

    name: str
    folder: str
    iterations: int
    passes: float
    rewards: list[float]  # at the end of each rung that it reached
    alarms: int
    failure: str | None

    @property
    def reward(self) -> float:
        return self.rewards[-1] if self.rewards else math.nan


@dataclass(frozen=True)
class Found:
    """The result of a search: all candidates, the rungs, the cost, and the file with the best recipe."""

    tried: list[Tried]  # best first
    ladder: list[Rung]
    passes: float  # that were made
    grid: float  # passes of all candidates, had each run whole
    recipe: str

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain values for JSON, with None in place of NaN."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)), parse_constant=lambda name: None)
        return plain


class Search:
    """The runs of one search, with methods that train them from rung to rung."""

    def __init__(self, runs: Sequence[CandidateRun], lock: int, stop: Event, workers: int, progress: Progress) -> None:
        self.runs = {run.name: run for run in runs}
        self.lock, self.stop, self.progress, self.workers = lock, stop, progress, workers
        self.rewards: dict[str, list[float]] = {name: [] for name in self.runs}
        self.slots: SimpleQueue[dict[str, str]] = SimpleQueue()
        for devices in shared_devices(workers, runs[0].config):
            self.slots.put(devices)

    def iterations(self, name: str, rung: Rung) -> int:
        return max(LEAST, round(rung.passes / self.runs[name].passes_of_iteration))

    def climb(self, names: list[str], rung: Rung) -> Scores:
        """Train the named runs to the end of a rung, and return their rewards by name.

        All other runs have dropped out, and their checkpoints are deleted.

        Raises:
            ConfigError: None of the named runs has a reward at the end of the rung.
        """
        for name, run in self.runs.items():
            if name not in names:
                run.forget_weights()
        goals = {name: self.iterations(name, rung) for name in names}
        self.advance(goals, f"{len(names)} of {len(self.runs)} candidates")
        scores = {name: self.runs[name].reward(goal) for name, goal in goals.items()}
        if not best(scores, 1):
            first = next(filter(None, (self.runs[name].failure for name in names)), "it has no reward")
            raise ConfigError(f"no candidate came to the end of its rung; {names[0]}: {first}")
        for name, score in scores.items():
            self.rewards[name].append(score)
        return scores

    def advance(self, goals: dict[str, int], what: str) -> None:
        """Train each run up to its number of iterations in `goals`, as many runs at a time as there are workers.

        `what` is the text of the progress display. An exception that ends the search is raised after all runs have
        saved.
        """
        total = sum(goals.values())
        with self.progress(what) as emit, ThreadPoolExecutor(self.workers) as pool:
            waiting = {pool.submit(self._advance, name, goal) for name, goal in goals.items()}
            try:
                while waiting:
                    ended, waiting = wait(waiting, timeout=1.0)
                    for future in ended:
                        future.result()
                    done = {name: min(len(self.runs[name].rows()), goal) for name, goal in goals.items()}
                    now = next((name for name, goal in goals.items() if done[name] < goal), "")
                    emit(sum(done.values()), total, now)
            except BaseException:
                self.stop.set()
                raise

    def _advance(self, name: str, goal: int) -> None:
        devices = self.slots.get()
        try:
            if not self.stop.is_set():
                self.runs[name].advance(goal, self.stop, self.lock, devices)
        finally:
            self.slots.put(devices)

    def seconds_per_pass(self) -> float:
        """Return the median seconds per forward pass, timed in a few iterations of the first candidate.

        These iterations are the beginning of the candidate's run, so they are not lost.
        """
        run = next(iter(self.runs.values()))
        self.advance({run.name: TIMED}, "timing")
        if run.failure:
            raise ConfigError(f"{run.name} failed: {run.failure}")
        return run.seconds_per_pass()

    def outcome(self) -> list[Tried]:
        """Return the result of each candidate: first those that reached more rungs, then those with more reward."""
        tried = [
            Tried(
                name=run.name,
                folder=str(run.folder),
                iterations=(count := len(run.rows())),
                passes=count * run.passes_of_iteration,
                rewards=self.rewards[run.name],
                alarms=sum(int(row.get("drift/alarms") or 0) for row in run.rows()),
                failure=run.failure,
            )
            for run in self.runs.values()
        ]
        return sorted(tried, key=lambda t: (-len(t.rewards), -t.reward if math.isfinite(t.reward) else math.inf))


def shared_devices(workers: int, config: RecipeConfig) -> list[dict[str, str]]:
    """Return the environment variables of each worker, which give it GPUs that no other worker has.

    The GPUs are among those that this process may use. If runs use no GPU, the variables are empty.

    Raises:
        ConfigError: There are not enough GPUs for all workers.
    """
    if choose_device(config.tuning.device) == HOST:
        return [{}] * workers
    count, processes = torch.accelerator.device_count(), config.parallel.processes
    if workers * processes > count:
        raise ConfigError(
            f"{workers} × {processes} processes need as many GPUs, and this machine has {count}; a search runs on one "
            f"machine. Use --workers {max(count // processes, 1)}, or a recipe with parallel.processes={count} or less"
        )
    named = os.environ.get(VISIBLE)
    visible = named.split(",") if named else [str(i) for i in range(count)]
    return [{VISIBLE: ",".join(visible[i * processes : (i + 1) * processes])} for i in range(workers)]


def tune(
    source: str | Path,
    overrides: Sequence[str],
    tried: Sequence[str],
    folder: Path,
    *,
    passes: float | None = None,
    hours: float | None = None,
    keep: int = KEEP,
    workers: int = 1,
    progress: Progress = no_progress,
    emit: Emit = lambda text: None,
) -> Found:
    """Search for the best candidate, and write the results and the best recipe into `folder`.

    Args:
        source: Name or path of the recipe.
        overrides: Settings that replace those of the recipe, for all candidates.
        tried: Values to try, such as `optimizer.lr=1e-4,3e-4`; candidates are all combinations.
        folder: Folder of the search. A search that was stopped continues from it.
        passes: Budget of the whole search in forward passes. Without any budget, the last run has the recipe's own
            length.
        hours: Budget of the whole search in hours, in place of `passes`.
        keep: One candidate in so many continues on the next rung.
        workers: Number of runs at a time.
        progress: Shows the progress of the search.
        emit: Gets messages to show.
    """
    candidates = make_candidates(source, overrides, tried)
    runs = [CandidateRun(c.name, settings_of(source, overrides, c), folder / RUNS / c.folder) for c in candidates]
    own = load_recipe(source, list(overrides))
    asked = {"recipe": dump_recipe(own), "candidates": [c.name for c in candidates], "keep": keep}
    budget = {"passes": passes, "hours": hours}
    with locked(folder, emit) as lock, stopping() as stop:
        before = checked(folder, asked)
        climbing = Search(runs, lock, stop, workers, progress)
        if before.get("budget") == budget:
            whole = before["whole"]
        else:
            whole = whole_run(climbing, own.run.iterations, passes, hours, keep)
        ladder = rungs(len(runs), whole, keep)
        check_first(ladder, runs, keep)
        write_json(folder / SEARCH, asked | {"budget": budget, "whole": whole})
        search(ladder, list(climbing.runs), climbing.climb)
    rows = climbing.outcome()
    winner = next(c for c in candidates if c.name == rows[0].name)
    atomic_write(folder / BEST, dump_recipe(settings_of(source, overrides, winner)).encode())
    found = Found(rows, ladder, sum(row.passes for row in rows), len(runs) * whole, str(folder / BEST))
    write_json(folder / RESULT, found.as_dict())
    return found


def checked(folder: Path, asked: dict[str, Any]) -> dict[str, Any]:
    """Return what an earlier call wrote about its search into the folder; empty if there was no call.

    Raises:
        ConfigError: The folder has a search of another recipe or other candidates.
    """
    path = folder / SEARCH
    before: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if before and any(before.get(key) != value for key, value in asked.items()):
        raise ConfigError(f"{folder} holds a search of another recipe or other candidates; choose another --out")
    return before


def whole_run(climbing: Search, iterations: int, passes: float | None, hours: float | None, keep: int) -> float:
    """Return how many forward passes the last run of the search may take, within the budget in passes or hours.

    Without a budget, it is the number of passes in `iterations` iterations.
    """
    runs = list(climbing.runs.values())
    if hours is not None:
        passes = hours * 3600 * climbing.workers / climbing.seconds_per_pass()
    if passes is None:
        return iterations * runs[0].passes_of_iteration
    return whole_within(passes, len(runs), keep)


def check_first(ladder: Sequence[Rung], runs: Sequence[CandidateRun], keep: int) -> None:
    """Refuse a budget whose first rung would have too few iterations to tell candidates apart."""
    longest = max(run.passes_of_iteration for run in runs)
    if ladder[0].passes < LEAST * longest:
        unit = rungs(len(runs), 1.0, keep)
        least = math.ceil(cost(unit) * LEAST * longest / unit[0].passes)
        raise ConfigError(
            f"the budget is too small for {len(runs)} candidates: the first rung would be shorter than {LEAST} "
            f"iterations. Give --passes {least} or more, or try fewer values"
        )


@contextmanager
def stopping() -> Iterator[Event]:
    """Let SIGTERM end a search inside the block in the same way as Ctrl-C: its runs save first.

    Yield the event that stops the runs.
    """
    stop = Event()
    if current_thread() is not main_thread():
        yield stop
        return

    def handle(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, before)
