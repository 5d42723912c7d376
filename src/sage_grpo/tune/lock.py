"""The lock of a search's folder: one search at a time, and none while runs of a killed search are still ending."""

from contextlib import AbstractContextManager
from pathlib import Path

from sage_grpo.progress import Emit
from sage_grpo.runs import lock

PATIENCE = 120.0  # seconds in which a run saves and ends


def locked(folder: Path, emit: Emit, patience: float = PATIENCE) -> AbstractContextManager[int]:
    """Lock the folder of a search inside the block, which gets the file descriptor of the lock.

    Runs of the search keep the descriptor open, so that the lock lasts until they end, even if the search is killed.
    Another search waits up to `patience` seconds for the lock.

    Raises:
        ConfigError: Another search still has the lock.
    """
    return lock.locked(
        folder / "lock",
        f"another search is running in {folder}; wait for it, or use another --out",
        patience=patience,
        waiting=lambda: emit("waiting until a run of an earlier search has saved and ended"),
    )
