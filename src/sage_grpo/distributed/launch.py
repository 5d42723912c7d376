"""Functions that start processes on this machine, by torchrun if there are several, and report the first failure."""

import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from sage_grpo.errors import UserError

FAILURES, LOG = "failures", "processes.log"


class ProcessFailure(UserError, RuntimeError):
    """Raised when a launched process ends with an error; the message is that of the process that failed first."""


def launch(
    processes: int,
    module: str,
    arguments: Sequence[str],
    folder: Path,
    look: Callable[[], None] = lambda: None,
    *,
    environment: Mapping[str, str] | None = None,
    files: Sequence[int] = (),
) -> None:
    """Run `python -m module` in several processes, and return when all have ended.

    Args:
        processes: Number of processes.
        module: Module to run.
        arguments: Command-line arguments of the module.
        folder: Folder for the output of the processes (`processes.log`) and their failures.
        look: Called a few times per second while the processes run, to show progress.
        environment: Environment variables, added to those of this process.
        files: File descriptors that stay open in the command that is started.

    Raises:
        ProcessFailure: A process ended with an error or was killed.
    """
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    command = [sys.executable, *torchrun]
    # what this process can import, the others can: a reward of the user's may lie next to the recipe
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    settings = {"OMP_NUM_THREADS": "1"} | os.environ | {"PYTHONPATH": paths} | dict(environment or {})
    with (folder / LOG).open("wb") as log:
        started = subprocess.Popen(
            [*command, "-m", module, *arguments],
            env=settings,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=files,
        )
        try:
            while started.poll() is None:
                look()
                time.sleep(0.2)
        finally:
            if started.poll() is None:  # Ctrl-C
                started.terminate()
                started.wait()
    if started.returncode:
        raise ProcessFailure(_first_failure(folder) or f"a process was killed; {_tail(folder / LOG)}")


@contextmanager
def recording_failures(folder: Path, rank: int, world: int) -> Iterator[None]:
    """Write an error of the block into `folder`, where the process that called `launch` reads it, and raise it again.

    Use it in each launched process, with its rank and the number of processes `world`.
    """
    try:
        yield
    except Exception as error:
        text = str(error) if isinstance(error, UserError) else "".join(traceback.format_exception(error)).rstrip()
        failure = {"time": time.time(), "text": f"process {rank} of {world}: {text}"}
        (folder / FAILURES).mkdir(exist_ok=True)
        (folder / FAILURES / f"{rank}.json").write_text(json.dumps(failure))
        raise


def _first_failure(folder: Path) -> str | None:
    """Return the message of the process that failed first, or None. The others often fail only because it did."""
    failures = [json.loads(path.read_text()) for path in (folder / FAILURES).glob("*.json")]
    return str(min(failures, key=lambda failure: failure["time"])["text"]) if failures else None


def _tail(log: Path) -> str:
    return "its last words:\n" + "\n".join(log.read_text(errors="replace").splitlines()[-15:])
