"""Checkpoints that are either complete or ignored. Every process writes its own shards, and any layout can read them.

A checkpoint is a folder: tensors in the format of torch's distributed checkpoints (DCP), everything else as JSON, and a
manifest with the hash of each file, written last. No pickle can run: the index of tensors is JSON, and torch reads
the values of tensors with `weights_only`.
"""

import errno
import json
import logging
import os
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor import empty as empty_shards

from sage_grpo.distributed.checkpoint_index import INDEX
from sage_grpo.distributed.processes import Processes
from sage_grpo.distributed.storage import Storage
from sage_grpo.errors import UserError
from sage_grpo.runs.folder import STEP

# On one process DCP says on every call, in a thread of its own too, that there is one process.
warnings.filterwarnings("ignore", message=".*assuming the intent is to (save|load) in a single process.*")

log = logging.getLogger(__name__)

MANIFEST, STATE, TENSORS = "manifest.json", "state.json", "tensors"
Sharded = Callable[[str], bool]  # which tensors, by their place in the state, are cut like the weights
Root = str | Path  # a folder, or a URL that fsspec knows


class DamagedCheckpoint(UserError, RuntimeError):
    """Raised when files of a checkpoint are missing, or differ from the files that were written."""


class CheckpointError(UserError, RuntimeError):
    """Raised when a checkpoint cannot be written."""


def _pack(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Return nested state in a form for JSON. Its tensors are put into `tensors`, with references in their place."""
    if isinstance(value, Tensor):
        tensors[path] = value.detach()
        return {"tensor": path, "shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
    if isinstance(value, Mapping):
        return {"dict": [[k, _pack(v, f"{path}/{k}", tensors)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [_pack(v, f"{path}/{i}", tensors) for i, v in enumerate(value)]}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    raise TypeError(f"{path} is a {type(value).__name__}: a checkpoint holds tensors, numbers, texts and containers")


def saved_tensors(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return all tensors inside nested state, by their path, such as `state/loop/model/WEIGHT`."""
    tensors: dict[str, Tensor] = {}
    _pack(state, "state", tensors)
    return tensors


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


class Saver:
    """A writer of checkpoints that works while training continues. Every process must make the same calls.

    Args:
        root: A folder, or a URL that fsspec knows.
        keep: Number of newest checkpoints that are kept; older ones are removed.
        processes: The processes that write together; None for a single process.
        keep_every: Checkpoints of iterations that this number divides are never removed; None if there are none.
    """

    def __init__(
        self, root: Root, keep: int = 2, processes: Processes | None = None, keep_every: int | None = None
    ) -> None:
        self.storage, self.keep, self.processes, self.keep_every = Storage(root), keep, processes, keep_every
        # A group of its own: what it says must not mix with what training says meanwhile.
        self.group = processes.another_group() if processes else None
        self.main, self.rank = (processes.main, processes.global_rank) if processes else (True, 0)
        self._pending: Future[None] | None = None

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Start writing the checkpoint of iteration `step`, such as `step-00000010`, and return when `state` is copied.

        The previous checkpoint is finished first. If it could not be written, its error is raised here.
        """
        self.wait()
        tensors: dict[str, Tensor] = {}
        packed = json.dumps(_pack(state, "state", tensors)).encode()
        name, work, problem = step_name(step), "", None
        if self.main:
            try:
                work = self.storage.begin(name)
            except Exception as error:  # of whatever kind the storage has: the others wait for a word
                problem = _reason(error)
        (work, problem), *_ = self._tell((work, problem))
        self._agree(step, [problem])
        written = async_save(
            tensors,
            storage_writer=self.storage.writer(f"{work}/{TENSORS}"),
            process_group=self.group,
            no_dist=self.processes is None,
        )
        assert isinstance(written, Future)
        thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending = thread.submit(self._finish, step, name, work, packed, written)
        thread.shutdown(wait=False)  # it ends with its work

    def wait(self) -> None:
        """Wait until the last checkpoint is complete. If it could not be written, raise the error."""
        pending, self._pending = self._pending, None
        if pending:
            pending.result()

    def _tell(self, value: Any) -> list[Any]:
        return self.processes.everybody(value, self.group) if self.processes else [value]

    def _finish(self, step: int, name: str, work: str, packed: bytes, written: "Future[Any]") -> None:
        hashes: dict[str, str] = {}
        problem = None
        try:
            written.result()
            mine = self.storage.names(f"{work}/{TENSORS}", f"__{self.rank}_")
            if self.main:
                self.storage.write(f"{work}/{STATE}", packed)
                mine += [f"{work}/{STATE}", f"{work}/{TENSORS}/{INDEX}"]
            hashes = {path.removeprefix(f"{work}/"): self.storage.digest(path) for path in mine}
        except (Exception, CheckpointException) as error:
            problem = os.strerror(errno.ENOSPC) if self.storage.full() else _reason(error)  # torch says it in riddles
        reports = self._tell((problem, hashes))
        self._agree(step, [problem for problem, _ in reports], work)
        if self.main:
            try:
                every = {path: digest for _, part in reports for path, digest in sorted(part.items())}
                self.storage.write(f"{work}/{MANIFEST}", json.dumps({"step": step, "sha256": every}, indent=1).encode())
                for folder in (f"{work}/{TENSORS}", work):
                    self.storage.sync(folder)
                self.storage.publish(work, name)
            except Exception as error:
                problem = _reason(error)
        self._agree(step, self._tell(problem), work)
        if self.main:
            self._retire()

    def _retire(self) -> None:
        """Remove all checkpoints except the newest `keep` and those of every `keep_every`-th iteration.

        A checkpoint without a manifest was never finished. It is removed too, and does not count among those that are
        kept. A failure to remove is only logged, because the new checkpoint is there all the same.
        """
        try:
            steps = self.storage.steps()
            whole = [step for step in steps if self.storage.names(step, MANIFEST)]
            kept = {*whole[-self.keep :], *(s for s in whole if self.keep_every and step_of(s) % self.keep_every == 0)}
            for old in steps:
                if old not in kept:
                    self.storage.remove(old)
        except Exception as error:
            log.warning("an old checkpoint in %s could not be removed: %s", self.storage.root, _reason(error))

    def _agree(self, step: int, problems: list[str | None], work: str = "") -> None:
        """Raise a CheckpointError on all processes if something went wrong for one of them."""
        failure = next((problem for problem in problems if problem), None)
        if not failure:
            return
        if self.main and work:
            with suppress(Exception):
                self.storage.remove(work)  # half of a checkpoint is of no use, and room is needed
        last = self.storage.steps()[-1:] or ["none"]
        raise CheckpointError(
            f"the checkpoint of iteration {step} could not be written to {self.storage.root}: {failure}; the last "
            f"whole one is {last[0]}. Make room or name another place (run.checkpoints); the same command continues "
            "from there"
        )


def _reason(error: BaseException) -> str:
    """Return the first cause of an error in words. DCP wraps the errors of processes in exceptions of its own."""
    failures = getattr(error, "failures", None)
    if failures:
        return _reason(next(iter(failures.values()))[0])
    return f"{type(error).__name__}: {error}" if not isinstance(error, OSError) else str(error)


def step_name(step: int) -> str:
    return f"{STEP}{step:08d}"


def step_of(name: str) -> int:
    """Return the iteration in the name of a checkpoint, such as 10 for `step-00000010`."""
    return int(name.removeprefix(STEP))


def checkpoints(root: Root) -> list[str]:
    """Return the names of the checkpoints in the folder or at the URL `root`, in the order of iterations."""
    return Storage(root).steps()


def _problem(storage: Storage, name: str, processes: Processes | None) -> str | None:
    """Return what is wrong with a checkpoint, or None if this process finds nothing. Each process checks some files."""
    try:
        hashes: dict[str, str] = json.loads(storage.read(f"{name}/{MANIFEST}"))["sha256"]
        files = sorted(hashes)
        if not any(file.startswith(f"{TENSORS}/") for file in files):
            return f"{storage.url(name)} is of an earlier version's format"
        if strange := [file for file in files if ".." in file.split("/") or file.startswith("/") or "\\" in file]:
            return f"{storage.url(name)}/{MANIFEST} names {strange[0]!r}, which is no file of a checkpoint"
        rank, world = (processes.global_rank, processes.global_world) if processes else (0, 1)
        for file in files[rank::world]:
            if storage.digest(f"{name}/{file}") != hashes[file]:
                return f"{storage.url(name)}/{file} is not the file that was saved"
    except FileNotFoundError as error:
        return f"{storage.url(name)} is not a whole checkpoint: {error.filename or error} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{storage.url(name)} is not a whole checkpoint: {error}"
    return None


def load_checkpoint(
    root: Root, name: str, processes: Processes | None = None, sharded: Sharded = lambda path: False
) -> dict[str, Any]:
    """Return the state that a checkpoint holds. Tensors that are sharded are cut for the processes that read them.

    Args:
        root: A folder, or a URL that fsspec knows.
        name: Name of the checkpoint, such as `step-00000010`.
        processes: The processes that read together, each of which checks some of the files; None for a single process.
        sharded: Function that returns, for the path of a tensor in the state, whether it is sharded like the weights.

    Raises:
        DamagedCheckpoint: A file is missing or is not the one that was written.
    """
    storage = Storage(root)
    problem = _problem(storage, name, processes)
    damage = next((p for p in (processes.everybody(problem) if processes else [problem]) if p), None)
    if damage:
        raise DamagedCheckpoint(damage)
    packed = json.loads(storage.read(f"{name}/{STATE}"))
    tensors: dict[str, Tensor] = {}
    mesh = processes.weights_mesh if processes else None

    def room(entry: Mapping[str, Any]) -> Any:
        path, dtype = entry["tensor"], getattr(torch, entry["dtype"])
        cut = mesh is not None and bool(entry["shape"]) and sharded(path)
        tensors[path] = (
            _shards(entry["shape"], dtype, mesh) if cut and mesh else torch.empty(entry["shape"], dtype=dtype)
        )
        return tensors[path]

    state = _unpack(packed, room)
    try:
        load(tensors, storage_reader=storage.reader(f"{name}/{TENSORS}"), no_dist=processes is None)
    except CheckpointException as error:  # on all processes alike
        reason = _reason(error).splitlines()[0]
        raise DamagedCheckpoint(f"{storage.url(name)} does not hold the tensors of a checkpoint: {reason}") from error
    assert isinstance(state, dict)
    return state


def _shards(shape: list[int], dtype: torch.dtype, mesh: DeviceMesh) -> DTensor:
    """Return an empty tensor, sharded as FSDP2 shards weights: along the first axis, copied along `replicate`."""
    placements = [Replicate(), Shard(0)] if mesh.ndim == 2 else [Shard(0)]
    return empty_shards(*shape, dtype=dtype, device_mesh=mesh, placements=placements)


def load_newest(
    root: Root, processes: Processes | None = None, sharded: Sharded = lambda path: False
) -> tuple[str, dict[str, Any], list[str]] | None:
    """Return name and state of the newest whole checkpoint, and one sentence per newer checkpoint about its damage.

    Return None if there is no checkpoint at all. The arguments are those of `load_checkpoint`.

    Raises:
        DamagedCheckpoint: There are checkpoints, but none is whole.
    """
    problems: list[str] = []
    for name in reversed(checkpoints(root)):
        try:
            return name, load_checkpoint(root, name, processes, sharded), problems
        except DamagedCheckpoint as error:
            problems.append(str(error))
    if problems:
        raise DamagedCheckpoint("no whole checkpoint is left:\n" + "\n".join(problems))
    return None
