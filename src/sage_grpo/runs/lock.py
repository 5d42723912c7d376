"""A lock, with which one process at a time works in a folder.

The system frees a lock when its holder ends, however it ends.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sage_grpo.config import ConfigError


def take(path: Path) -> int | None:
    """Take a lock and return its descriptor, to be closed; None if another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:  # a file system that has no locks: as if nobody else were there
        pass
    return descriptor


@contextmanager
def locked(
    path: Path, refusal: str, *, patience: float = 0.0, waiting: Callable[[], None] = lambda: None
) -> Iterator[int]:
    """Hold a lock inside the block and yield its descriptor. Processes that are given it hold the lock too.

    Args:
        path: The file that stands for the lock; it stays.
        refusal: What is wrong, and what to do, if another process keeps it.
        patience: Seconds to wait for that process.
        waiting: Called once, when waiting begins.

    Raises:
        ConfigError: With `refusal`.
    """
    began, descriptor = time.monotonic(), take(path)
    if descriptor is None and patience:
        waiting()
    while descriptor is None:
        if time.monotonic() - began >= patience:
            raise ConfigError(refusal)
        time.sleep(0.2)
        descriptor = take(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
