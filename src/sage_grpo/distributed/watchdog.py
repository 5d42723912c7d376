"""A watchdog that turns a hang into an error, and ends all processes on every node when one of them fails."""

import faulthandler
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from sage_grpo.core.callback import Callback
from sage_grpo.core.loop import Loop
from sage_grpo.core.video_model import networks
from sage_grpo.distributed.hang import STDERR, failed_rank, report_error, report_hang
from sage_grpo.distributed.processes import Processes
from sage_grpo.runs.folder import RunFolder

GRACE = 60.0  # seconds in which the other processes may write their stacks; a shared folder shows news late
LOOK = 1.0  # seconds between two looks into the run folder
OWN_ERROR = 2.0  # seconds in which a process may fail by itself, as another one has
LEAVE = 7.0  # seconds that a process that failed may take to end: to close trackers and connections


def _event(event: str) -> Callable[..., None]:
    return lambda watchdog, *details: watchdog.mark(event)


class Watchdog(Callback):
    """A callback that ends this process after `minutes` without progress (0: never), or when another process fails.

    Progress is counted in marks: one per pass of the trained network, scored batch and event of the loop. Marks come in
    the same order on all ranks, so their number shows which rank is behind.

    A thread checks the marks and looks into the run folder. It sends no messages, because the other processes may be
    dead. If one process reports a hang in the folder, all write their stacks and end. If one process leaves an error
    there, the others end as well, because otherwise they would wait for that process.
    """

    on_start, on_scores = _event("the first iteration"), _event("a scored batch")
    on_rollout = _event("the rewards of all ranks")
    on_update, on_iteration, on_end = _event("an update"), _event("the end of an iteration"), _event("the end")

    def __init__(self, loop: Loop, folder: Path, minutes: float, processes: Processes | None = None) -> None:
        self.loop, self.limit, self.grace = loop, minutes * 60, min(GRACE, minutes * 60)
        self.rank, self.world = (processes.global_rank, processes.global_world) if processes else (0, 1)
        start = time.strftime("%Y%m%d-%H%M%S")
        self.folder = RunFolder(folder).hangs / (processes.everybody(start)[0] if processes else start)
        self.errors = self.folder.with_name(f"{self.folder.name}-errors")
        self.marks, self.place, self.at = 0, "the start", time.monotonic()
        self._over, self._failed = threading.Event(), False

    def mark(self, event: str) -> None:
        self.marks, self.place, self.at = self.marks + 1, event, time.monotonic()

    @contextmanager
    def watching(self) -> Iterator[None]:
        if not self.limit and self.world == 1:
            yield
            return
        parts = networks(self.loop.model.module).values()
        # Before the hook of FSDP2, which waits for the others: a rank that waits has come further. A function and no
        # method, for whoever copies the network would copy the watchdog with it.
        hooks = [part.register_forward_pre_hook(lambda *details: self._pass(), prepend=True) for part in parts]
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self.mark("the start")
        self._alive()
        self._thread.start()
        try:
            yield
        except BaseException as error:
            self.fail(error)
            raise
        finally:
            self._end()
            for hook in hooks:
                hook.remove()

    def fail(self, error: BaseException) -> None:
        """Write the traceback of `error` into the run folder, so that all other processes find it and end.

        This process ends too, by force if it has not ended after 7 seconds. In a run of one process, do nothing.
        """
        if self.world > 1 and not self._failed:
            self._failed = True
            with suppress(OSError):  # such as that of a full disk
                if line := failed_rank(self.errors, self.rank):  # this error may be a consequence of that one
                    os.write(STDERR, f"{line}\n".encode())
                report_error(self.errors, self.rank, error)
            self._end()
            self._last_resort(LEAVE)

    def _end(self) -> None:
        self._over.set()
        self._thread.join()
        if not self._failed:
            faulthandler.cancel_dump_traceback_later()

    def _pass(self) -> None:
        if not torch.compiler.is_compiling():
            self.mark("a pass of the network")

    def _watch(self) -> None:
        while not self._over.wait(min(self.limit / 10, LOOK) if self.limit else LOOK):
            self._alive()
            if line := failed_rank(self.errors, self.rank):
                if not self._over.wait(OWN_ERROR):
                    os.write(STDERR, f"{line}\n".encode())
                    os._exit(1)
            elif self.limit and (time.monotonic() - self.at > self.limit or self.folder.exists()):
                try:
                    self._report()
                finally:
                    os._exit(1)

    def _alive(self) -> None:
        if self.limit:
            self._last_resort(self.limit + self.grace / 2)

    def _last_resort(self, seconds: float) -> None:
        """Schedule an exit of this process after `seconds`, with all stacks on stderr. A later call replaces this exit.

        The exit works even if a hang lets no thread of Python run, or if a disk blocks the watchdog's thread.
        """
        faulthandler.dump_traceback_later(seconds, exit=True, file=STDERR)

    def _report(self) -> None:
        self._last_resort(4 * self.grace)
        done = f"{self.marks} marks, {self.loop.iteration} iterations and {self.loop.updates} updates"
        position = f"last seen at {self.place} {(time.monotonic() - self.at) / 60:.1f} min ago"
        report_hang(self.folder, self.rank, self.world, f"{done}, {position}", self.limit / 60, self.grace)
