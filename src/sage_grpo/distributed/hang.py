"""Reports of a run that hangs or fails: stacks and tracebacks of all ranks in one folder, and a summary of which rank
made the least progress."""

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
    """Write the stacks of this process into `folder`, wait for those of the other ranks, and write a summary.

    The lowest rank that wrote its stacks writes the summary. Processes exchange nothing except these files.

    Args:
        folder: Folder of this hang, the same for all ranks.
        rank: Rank of this process.
        world: Number of processes.
        progress: How far this process came. It starts with a number, by which the summary sorts the ranks.
        minutes: Minutes without progress, which the summary reports.
        grace: Longest wait for the files of the others, in seconds.
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
    """Write the error of this process into `folder`: one line with rank and message, then the traceback."""
    who = f"rank {rank} (process {os.getpid()} on {os.uname().nodename})"
    what = " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST]
    trace = "".join(traceback.format_exception(error))
    atomic_write(folder / f"rank-{rank:04d}.txt", clean_text(f"{who} failed: {what}\n\n{trace}").encode())


def failed_rank(folder: Path, rank: int) -> str | None:
    """Return a sentence about the process that failed first, with the file of its traceback; None if none has failed.

    The sentence also says that this process, `rank`, ends because of that failure.
    """
    ranks = _ranks(folder)
    if not ranks:
        return None
    first = min(ranks.values(), key=lambda path: path.stat().st_mtime)
    what = first.read_text().splitlines()[0]
    return f"error: {what}; traceback in {first}; rank {rank} ends, for it would wait"


def record_collectives() -> None:
    """Make torch's flight recorder keep the last 2000 collective operations of this process.

    Call this function before the first process group is made. A number that the user has set stays as it is.
    """
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")


def collectives() -> bytes | None:
    """Return the collective operations in torch's flight recorder as JSON, each with its shapes, state and times.

    Return None if there is no process group, or no recorder in this torch. The cause of a hang is often the rank whose
    last operation is missing, or differs from that of the other ranks.
    """
    dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace_json", None)  # has no public name in torch 2.13
    if dump is None or not dist.is_initialized():
        return None
    found: bytes | str = dump()
    return found.encode() if isinstance(found, str) else found


def stacks() -> str:
    """Return the Python stacks of all threads of this process as text, the main thread first."""
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
