"""Files that are either whole or not there."""

import os
from pathlib import Path

NEW = ".new"  # ends the name of a file that is not whole yet


def atomic_write(path: Path, data: bytes) -> None:
    """A reader, or a restart after a kill, finds the old file or the new one, never a half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}{NEW}")
    try:
        with new.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove what writers that were killed left; nobody may be writing there."""
    for left in folder.glob(f".*{NEW}"):
        left.unlink(missing_ok=True)
