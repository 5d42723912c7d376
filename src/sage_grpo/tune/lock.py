"""One search in a folder at a time, and none while a run of a killed one still ends there."""

from contextlib import AbstractContextManager
from pathlib import Path

from sage_grpo.progress import Emit
from sage_grpo.runs import lock

PATIENCE = 120.0  # seconds in which a run saves and ends


def locked(folder: Path, emit: Emit, patience: float = PATIENCE) -> AbstractContextManager[int]:
    """Lock the folder of a search inside the block. The block gets the descriptor of the lock.

    Runs keep it open, so that it outlives a search that is killed.
    """
    return lock.locked(
        folder / "lock",
        f"another search is running in {folder}; wait for it, or use another --out",
        patience=patience,
        waiting=lambda: emit("waiting until a run of an earlier search has saved and ended"),
    )
