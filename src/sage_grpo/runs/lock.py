"""A file lock, with which only one process at a time works in a folder.

The operating system frees the lock when the process that holds it ends, even by a crash.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sage_grpo.config import ConfigError


def take(path: Path) -> int | None:
    """Take the lock `path` and return its file descriptor; None if another process holds the lock.

    Closing the descriptor frees the lock. On a file system without locks, the lock is always free.
    """
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
    """Hold the lock `path` inside the block, and yield its file descriptor.

    A process that inherits the descriptor holds the lock too.

    Args:
        path: The lock file. It is not removed at the end.
        refusal: Message of the error if another process keeps the lock: what is wrong, and what to do.
        patience: Seconds to wait for the lock.
        waiting: Called once, when waiting begins.

    Raises:
        ConfigError: Another process still holds the lock after `patience` seconds. The message is `refusal`.
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
