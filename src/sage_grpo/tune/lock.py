"""One search in a folder at a time, and none while a run of a killed one still ends there."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sage_grpo.config import ConfigError
from sage_grpo.progress import Tell

PATIENCE = 120.0  # seconds in which a run saves and ends


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked(folder: Path, tell: Tell, patience: float = PATIENCE) -> Iterator[int]:
    """The descriptor of the lock. Runs keep it open, so that it outlives a search that is killed."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, began = os.open(folder / "lock", os.O_CREAT | os.O_RDWR), time.monotonic()
    try:
        if not _taken(descriptor):
            tell("waiting until a run of an earlier search has saved and ended")
        while not _taken(descriptor):
            if time.monotonic() - began > patience:
                raise ConfigError(f"another search is running in {folder}; wait for it, or use another --out")
            time.sleep(0.2)
        yield descriptor
    finally:
        os.close(descriptor)
