"""How long work tells how far it is. Whoever starts it decides what is shown, if anything."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

Tell = Callable[[str], None]
"""What is done now."""
TellCount = Callable[[int, int, str], None]
"""Done, in all, what now."""
Progress = Callable[[str], AbstractContextManager[TellCount]]
"""Begins to show the progress of what is named."""


def no_count(done: int, total: int, what: str) -> None:
    """Shows nothing."""


def no_progress(what: str) -> AbstractContextManager[TellCount]:
    """Shows nothing."""
    return nullcontext(no_count)
