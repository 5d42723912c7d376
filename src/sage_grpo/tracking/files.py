"""Files that are either whole or not there."""

import os
from pathlib import Path


def atomic_write(path: Path, data: bytes) -> None:
    """A reader, or a restart after a kill, finds the old file or the new one, never a half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with new.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)
