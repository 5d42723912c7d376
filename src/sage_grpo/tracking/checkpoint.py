"""Checkpoints that are whole or not there: safetensors and JSON, hashed, fsynced and renamed into place."""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

MANIFEST = "manifest.json"  # written last, with the hash of every other file


class DamagedCheckpoint(RuntimeError):
    """A checkpoint whose files are missing or are not those that were written."""


def _pack(value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """Nested state as JSON; tensors go into `tensors` and leave a reference."""
    if isinstance(value, Tensor):
        tensors[place] = value.detach().cpu().contiguous().clone()
        return {"tensor": place}
    if isinstance(value, Mapping):
        return {"dict": [[k, _pack(v, f"{place}/{k}", tensors)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [_pack(v, f"{place}/{i}", tensors) for i, v in enumerate(value)]}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    raise TypeError(f"{place} is a {type(value).__name__}: a checkpoint holds tensors, numbers, texts and containers")


def _unpack(packed: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Any:
    ((kind, content),) = packed.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {k: _unpack(v, tensors) for k, v in content}
    if kind in ("list", "tuple"):
        items = [_unpack(v, tensors) for v in content]
        return items if kind == "list" else tuple(items)
    return content


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def save_checkpoint(folder: Path, step: int, state: Mapping[str, Any], keep: int = 2) -> Path:
    """Write `step-00000010` below `folder` and drop all but the newest `keep`."""
    final, work = folder / f"step-{step:08d}", folder / f".step-{step:08d}.part"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    tensors: dict[str, Tensor] = {}
    packed = _pack(state, "state", tensors)
    save_file(tensors, work / "tensors.safetensors")
    (work / "state.json").write_text(json.dumps(packed))
    hashes = {path.name: _digest(path) for path in sorted(work.iterdir())}
    (work / MANIFEST).write_text(json.dumps({"step": step, "sha256": hashes}, indent=1))
    for path in (*work.iterdir(), work):
        _sync(path)
    shutil.rmtree(final, ignore_errors=True)
    work.rename(final)
    _sync(folder)
    for old in checkpoints(folder)[:-keep]:
        shutil.rmtree(old)
    return final


def checkpoints(folder: Path) -> list[Path]:
    """Oldest first."""
    return sorted(folder.glob("step-*")) if folder.is_dir() else []


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Check every hash, then load."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        for name, expected in manifest["sha256"].items():
            if _digest(path / name) != expected:
                raise DamagedCheckpoint(f"{path / name} is not the file that was saved")
        packed = json.loads((path / "state.json").read_text())
    except (OSError, ValueError, KeyError) as error:
        raise DamagedCheckpoint(f"{path} is not a whole checkpoint: {error}") from error
    state = _unpack(packed, load_file(path / "tensors.safetensors"))
    assert isinstance(state, dict)
    return state


def load_newest(folder: Path) -> tuple[Path, dict[str, Any], list[str]] | None:
    """The newest whole checkpoint, and what was wrong with those passed over."""
    problems: list[str] = []
    for path in reversed(checkpoints(folder)):
        try:
            return path, load_checkpoint(path), problems
        except DamagedCheckpoint as error:
            problems.append(str(error))
    if problems:
        raise DamagedCheckpoint("no whole checkpoint is left:\n" + "\n".join(problems))
    return None
