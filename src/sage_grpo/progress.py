"""Progress reports of long tasks. The caller of a task decides what is shown, by the `emit` function that it passes."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from rich import progress as bars
from rich.console import Console
from rich.table import Column

LINE_EVERY = 5.0  # seconds, between plain lines
Emit = Callable[[str], None]
"""A function that shows a message about the current step of a task."""
EmitProgress = Callable[[int, int, str], None]
"""A function that takes the number of finished items of a task, the number of all items, and what is done now."""
Progress = Callable[[str], AbstractContextManager[EmitProgress]]
"""A function that takes the name of a task, and returns a context manager that yields the task's `EmitProgress`."""


def no_count(done: int, total: int, what: str) -> None:
    """Ignore a progress report: an `EmitProgress` that shows nothing."""


def no_progress(what: str) -> AbstractContextManager[EmitProgress]:
    """Return a context manager that yields an `EmitProgress` which shows nothing, whatever the task."""
    return nullcontext(no_count)


@contextmanager
def progress_of(what: str, console: Console) -> Iterator[EmitProgress]:
    """Yield a function `emit(done, total, now)` that shows the progress of the task `what` and the time left.

    The display is a bar if `console` is a terminal, and a line every few seconds otherwise.
    """
    if console.is_terminal and not console.is_dumb_terminal:
        now = bars.TextColumn("{task.fields[now]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1))
        columns = (
            bars.TextColumn(what),
            bars.BarColumn(20),
            bars.MofNCompleteColumn(),
            bars.TimeElapsedColumn(),
            bars.TextColumn("left"),
            bars.TimeRemainingColumn(),
            now,
        )
        with bars.Progress(*columns, console=console, transient=True, expand=True) as bar:
            task = bar.add_task(what, total=None, now="")
            yield lambda done, total, now: bar.update(task, completed=done, total=total, now=now)
        return
    began = last = time.monotonic()

    def emit(done: int, total: int, now: str) -> None:
        nonlocal last
        moment = time.monotonic()
        if moment - last >= LINE_EVERY and done:
            last = moment
            left = (moment - began) / done * (total - done)
            console.print(f"{what} {done}/{total}, {left:.0f} s left: {now}", highlight=False, markup=False)

    yield emit
