"""Functions that write a file completely or not at all, and that check whether a folder can be written."""

import json
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NEW = ".new"  # ends the name of a file that is not whole yet


@contextmanager
def draft_of(path: Path, *, private: bool = False) -> Iterator[Path]:
    """Yield the path of a draft file to write, and move the draft to `path` at the end of the block.

    After an error in the block, the draft is removed and `path` stays as it was. If several processes or threads write
    the same `path`, the last one wins. Only its owner can read a file that is `private`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}{NEW}")
    try:
        if private:
            draft.touch(mode=0o600)
        yield draft
        with draft.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def atomic_write(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write `data` to `path` so that a reader, or a restart after a kill, finds the old file or the new one.

    A partly written file is never at `path`.
    """
    with draft_of(path, private=private) as draft:
        draft.write_bytes(data)


def write_json(path: Path, content: Any, *, private: bool = False) -> None:
    data = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    atomic_write(path, data, private=private)


def sweep(folder: Path) -> None:
    """Remove the unfinished drafts that killed processes left in `folder`. No other process may be writing there."""
    for left in folder.glob(f".*{NEW}"):
        left.unlink(missing_ok=True)


def why_not_writable(folder: Path) -> str | None:
    """Return the reason why no file can be written into `folder`, as a sentence, or None if writing is possible.

    For a folder that does not exist yet, the nearest existing folder above it is tested.
    """
    try:
        place = nearest_folder(folder)
        if not place.is_dir():
            return f"{place} is a file, not a folder"
        with tempfile.TemporaryFile(dir=place):  # permissions do not say it of root, or of a system's own folders
            return None
    except (OSError, ValueError) as error:
        return f"{str(folder)[:200]} cannot be written: {error.strerror if isinstance(error, OSError) else error}"


def nearest_folder(path: Path) -> Path:
    """Return the absolute path of `path` if it exists, or else of the nearest folder above it that exists."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.exists())
