"""Writing of files that are either whole or not there."""

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
    """Yield the path of a draft, which replaces `path` at the end of the block if nothing went wrong.

    If there are several writers, the last one wins. A private file can be read by its owner only.
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
    """Write a file so that a reader, or a restart after a kill, finds the old one or the new one, never a half."""
    with draft_of(path, private=private) as draft:
        draft.write_bytes(data)


def write_json(path: Path, content: Any, *, private: bool = False) -> None:
    data = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    atomic_write(path, data, private=private)


def sweep(folder: Path) -> None:
    """Remove the drafts that killed writers left in a folder. Nobody may be writing there."""
    for left in folder.glob(f".*{NEW}"):
        left.unlink(missing_ok=True)


def why_not_writable(folder: Path) -> str | None:
    """Return what keeps a folder, or one that has to be made, from being written, or None if nothing does."""
    try:
        place = nearest_folder(folder)
        if not place.is_dir():
            return f"{place} is a file, not a folder"
        with tempfile.TemporaryFile(dir=place):  # permissions do not say it of root, or of a system's own folders
            return None
    except (OSError, ValueError) as error:
        return f"{str(folder)[:200]} cannot be written: {error.strerror if isinstance(error, OSError) else error}"


def nearest_folder(path: Path) -> Path:
    """Return the folder `path`, or the first one above it that exists."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.exists())
