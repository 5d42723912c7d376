"""Reports of a run that hangs or fails: stacks and tracebacks in one folder, and a summary of who is behind."""

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from sage_grpo.files import atomic_write
from sage_grpo.runs.redact import clean_text

STDERR = 2
REPORT = "report.txt"
LONGEST = 300  # characters of an error in one line


def report_hang(folder: Path, rank: int, world: int, progress: str, minutes: float, grace: float) -> None:
    """Write the stacks of this process, and wait for those of the others. The lowest rank that wrote sums up.

    `progress` starts with a number, by which the summary shows who is behind, after `minutes` without progress. The
    processes exchange nothing except files in `folder`, and wait for them up to `grace` seconds.
    """
    who = f"rank {rank} (process {os.getpid()} on {os.uname().nodename})"
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / f"rank-{rank:04d}.txt", f"{progress}: {who}\n\n{stacks()}".encode())
    if last := collectives():
        atomic_write(folder / f"collectives-{rank:04d}.json", last)
    _wait(lambda: len(_ranks(folder)) == world, grace)
    if rank == min(_ranks(folder)):
        text = _summary(folder, world, minutes)
        atomic_write(folder / REPORT, text.encode())
        os.write(STDERR, text.encode())  # not print: the main thread may hold what that needs
    else:
        _wait((folder / REPORT).exists, grace)  # the launcher kills all others when one process ends


def report_error(folder: Path, rank: int, error: BaseException) -> None:
    """Write into `folder` what went wrong on this process: one line, then the traceback."""
    who = f"rank {rank} (process {os.getpid()} on {os.uname().nodename})"
    what = " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST]
    trace = "".join(traceback.format_exception(error))
    atomic_write(folder / f"rank-{rank:04d}.txt", clean_text(f"{who} failed: {what}\n\n{trace}").encode())


def failed_rank(folder: Path, rank: int) -> str | None:
    """Return the message of `rank` about the first process that failed, with the file of its traceback, or None."""
    ranks = _ranks(folder)
    if not ranks:
        return None
    first = min(ranks.values(), key=lambda path: path.stat().st_mtime)
    what = first.read_text().splitlines()[0]
    return f"error: {what}; traceback in {first}; rank {rank} ends, for it would wait"


def record_collectives() -> None:
    """Keep the last collectives of this process in torch's flight recorder; call it before the first group is made."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")


def collectives() -> bytes | None:
    """Return what the flight recorder has, as JSON: operation, shapes, state and times; None without a group.

    The rank whose last operation differs from the others', or is missing, is the one to look at.
    """
    dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace_json", None)  # has no public name in torch 2.13
    if dump is None or not dist.is_initialized():
        return None
    found: bytes | str = dump()
    return found.encode() if isinstance(found, str) else found


def stacks() -> str:
    """Return the stacks of all threads, the main one first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sorted(sys._current_frames().items(), key=lambda pair: pair[0] != threading.main_thread().ident)
    return "\n".join(f"{names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}" for ident, frame in frames)


def _summary(folder: Path, world: int, minutes: float) -> str:
    ranks = _ranks(folder)
    places = sorted((path.read_text().splitlines()[0] for path in ranks.values()), key=lambda x: int(x.split()[0]))
    silent = [f"nothing from rank {rank}: dead, or without this folder" for rank in range(world) if rank not in ranks]
    return (
        f"error: no progress for {minutes:g} minutes (run.hang_minutes): this run hangs and is ended. The stacks of "
        f"every rank are in {folder}; least progress first:\n" + "".join(f"  {line}\n" for line in silent + places)
    )


def _ranks(folder: Path) -> dict[int, Path]:
    return {int(path.stem.removeprefix("rank-")): path for path in folder.glob("rank-*.txt")}


def _wait(done: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not done() and time.monotonic() < end:
        time.sleep(0.1)
