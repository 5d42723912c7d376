"""Checkpoints that are whole or not there, written by every process for its own shards and read in any layout.

A checkpoint is a folder: tensors in the format of torch's distributed checkpoints (DCP), everything else as JSON, and a
manifest with the hash of each file, written last. DCP's own index is a pickle: nothing is read before its hash fits.
"""

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor import empty as empty_shards

from sage_grpo.dist.processes import Processes

MANIFEST, TENSORS = "manifest.json", "tensors"
Sharded = Callable[[str], bool]  # which tensors, by their place in the state, are cut like the weights


class DamagedCheckpoint(RuntimeError):
    """A checkpoint whose files are missing or are not those that were written."""


def _pack(value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """Nested state as JSON; tensors go into `tensors` and leave a reference."""
    if isinstance(value, Tensor):
        tensors[place] = value.detach()
        return {"tensor": place, "shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
    if isinstance(value, Mapping):
        return {"dict": [[k, _pack(v, f"{place}/{k}", tensors)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [_pack(v, f"{place}/{i}", tensors) for i, v in enumerate(value)]}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    raise TypeError(f"{place} is a {type(value).__name__}: a checkpoint holds tensors, numbers, texts and containers")


def _unpack(packed: Mapping[str, Any], tensor: Callable[[Mapping[str, Any]], Any]) -> Any:
    if "tensor" in packed:
        return tensor(packed)
    ((kind, content),) = packed.items()
    if kind == "dict":
        return {k: _unpack(v, tensor) for k, v in content}
    if kind in ("list", "tuple"):
        items = [_unpack(v, tensor) for v in content]
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


def _tell(processes: Processes | None, value: Any) -> list[Any]:
    return processes.everybody(value) if processes else [value]


def save_checkpoint(
    folder: Path, step: int, state: Mapping[str, Any], keep: int = 2, processes: Processes | None = None
) -> Path:
    """Write `step-00000010` below `folder` and drop all but the newest `keep`. Every process must call it."""
    main, rank = (processes.main, processes.global_rank) if processes else (True, 0)
    final, work = folder / f"step-{step:08d}", folder / f".step-{step:08d}.part"
    tensors: dict[str, Tensor] = {}
    packed = _pack(state, "state", tensors)
    if main:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
    _tell(processes, None)  # the folder is there
    _dcp(save, tensors, work / TENSORS, processes)
    mine = sorted((work / TENSORS).glob(f"__{rank}_*"))
    if main:
        (work / "state.json").write_text(json.dumps(packed))
        mine += [work / "state.json", work / TENSORS / ".metadata"]
    for path in mine:
        _sync(path)
    hashes = {str(path.relative_to(work)): _digest(path) for path in mine}
    told = _tell(processes, hashes)
    if main:
        whole = {name: digest for part in told for name, digest in sorted(part.items())}
        (work / MANIFEST).write_text(json.dumps({"step": step, "sha256": whole}, indent=1))
        for path in (work / MANIFEST, work / TENSORS, work):
            _sync(path)
        shutil.rmtree(final, ignore_errors=True)
        work.rename(final)
        _sync(folder)
        for old in checkpoints(folder)[:-keep]:
            shutil.rmtree(old)
    _tell(processes, None)  # it is there for all of them
    return final


def _dcp(action: Callable[..., Any], tensors: dict[str, Tensor], folder: Path, processes: Processes | None) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*single process.*|.*no_dist.*|.*TypedStorage.*")
        action(tensors, checkpoint_id=folder, no_dist=processes is None)


def checkpoints(folder: Path) -> list[Path]:
    """Oldest first."""
    return sorted(folder.glob("step-*")) if folder.is_dir() else []


def _problem(path: Path, names: list[str], hashes: Mapping[str, str]) -> str | None:
    try:
        wrong = next((name for name in names if _digest(path / name) != hashes[name]), None)
    except OSError as error:
        return f"{path} is not a whole checkpoint: {error}"
    return f"{path / wrong} is not the file that was saved" if wrong else None


def load_checkpoint(
    path: Path, processes: Processes | None = None, sharded: Sharded = lambda place: False
) -> dict[str, Any]:
    """Check every hash, each process some of them, then read this process's shards in today's layout."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        hashes: dict[str, str] = manifest["sha256"]
        names = sorted(hashes)
        if not any(name.startswith(f"{TENSORS}/") for name in names):
            raise ValueError("it is of an earlier version's format")
        rank, world = (processes.global_rank, processes.global_world) if processes else (0, 1)
        problem = _problem(path, names[rank::world], hashes)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"{path} is not a whole checkpoint: {error}"
    found = next((p for p in _tell(processes, problem) if p), None)
    if found:
        raise DamagedCheckpoint(found)
    packed = json.loads((path / "state.json").read_text())
    tensors: dict[str, Tensor] = {}
    mesh = processes.weights_mesh if processes else None

    def room(entry: Mapping[str, Any]) -> Any:
        place, dtype = entry["tensor"], getattr(torch, entry["dtype"])
        cut = mesh is not None and bool(entry["shape"]) and sharded(place)
        tensors[place] = (
            _shards(entry["shape"], dtype, mesh) if cut and mesh else torch.empty(entry["shape"], dtype=dtype)
        )
        return tensors[place]

    state = _unpack(packed, room)
    _dcp(load, tensors, path / TENSORS, processes)
    assert isinstance(state, dict)
    return state


def _shards(shape: list[int], dtype: torch.dtype, mesh: DeviceMesh) -> DTensor:
    """Room for this process's part, cut as FSDP2 cuts weights: along the first axis, copied along `replicate`."""
    placements = [Replicate(), Shard(0)] if mesh.ndim == 2 else [Shard(0)]
    return empty_shards(*shape, dtype=dtype, device_mesh=mesh, placements=placements)


def load_newest(
    folder: Path, processes: Processes | None = None, sharded: Sharded = lambda place: False
) -> tuple[Path, dict[str, Any], list[str]] | None:
    """The newest whole checkpoint, and what was wrong with those passed over."""
    problems: list[str] = []
    for path in reversed(checkpoints(folder)):
        try:
            return path, load_checkpoint(path, processes, sharded), problems
        except DamagedCheckpoint as error:
            problems.append(str(error))
    if problems:
        raise DamagedCheckpoint("no whole checkpoint is left:\n" + "\n".join(problems))
    return None
