"""How far a command is, with the time left: a bar on a terminal, a line now and then anywhere else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from sage_grpo.progress import TellCount

LINE_EVERY = 5.0  # seconds


@contextmanager
def progress_of(what: str, console: Console) -> Iterator[TellCount]:
    """Yields `tell(done, in all, what now)`; time left is from the pace so far."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column

    if console.is_terminal and not console.is_dumb_terminal:
        now = TextColumn("{task.fields[now]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1))
        columns = (
            TextColumn(what),
            BarColumn(20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            now,
        )
        with Progress(*columns, console=console, transient=True, expand=True) as bar:
            task = bar.add_task(what, total=None, now="")
            yield lambda done, total, now: bar.update(task, completed=done, total=total, now=now)
        return
    began = last = time.monotonic()

    def tell(done: int, total: int, now: str) -> None:
        nonlocal last
        moment = time.monotonic()
        if moment - last >= LINE_EVERY and done:
            last = moment
            left = (moment - began) / done * (total - done)
            console.print(f"{what} {done}/{total}, {left:.0f} s left: {now}", highlight=False, markup=False)

    yield tell
