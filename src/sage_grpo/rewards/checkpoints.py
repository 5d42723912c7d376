"""Helpers of scorers with a checkpoint of their own: reading pickles safely, writing folders, moving to a device."""

import hashlib
import os
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor, nn

from sage_grpo.config import ConfigError
from sage_grpo.errors import UserError
from sage_grpo.rewards.errors import MissingWeights, RewardError


def unpickle_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors in a pickle by name, on the host. A pickle that would run code is refused before it can.

    Raises:
        RewardError: The file cannot be read, or it holds more than tensors.
    """
    try:
        stay = lambda storage, _: storage  # noqa: E731 - on the host, wherever they were saved
        state = torch.load(path, map_location=stay, weights_only=True, mmap=zipfile.is_zipfile(path))
    except UnpicklingError as error:
        raise RewardError(f"{path} is refused: it holds more than tensors and could run code; nothing ran") from error
    except Exception as error:  # of bytes that are no pickle the reader says anything: KeyError, IndexError, …
        reason = str(error).partition("\n")[0]
        raise RewardError(f"{path} cannot be read; was it downloaded whole? {reason}") from error
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise RewardError(f"{path} is not a dictionary of tensors")
    return dict(state)


def not_loaded(scorer: str, source: str, needs: str, error: OSError) -> UserError:
    """Return the exception to raise for a scorer whose weights could not be loaded.

    It is a `ConfigError` if `source` exists but is no such checkpoint. Otherwise it is a `MissingWeights`, and a
    rehearsal replaces such a scorer.

    Args:
        scorer: Name of the scorer.
        source: The folder or hub name that was to be loaded.
        needs: What `source` should be, in words for the message.
        error: The error of the loading library.
    """
    kind = ConfigError if Path(source).exists() else MissingWeights
    reason = str(error).splitlines()[0]
    return kind(f"{scorer}: {source} is not {needs}, or the hub did not give it: {reason}")


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal. The file may be larger than the memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_places(state: Mapping[str, Tensor], network: nn.Module, missing: str = "are missing") -> None:
    """Refuse tensors whose names and shapes are not exactly those of the network's `state_dict`.

    Args:
        state: The tensors by name.
        missing: What the error message says of tensors that `state` lacks.

    Raises:
        RewardError: A tensor is missing, unknown or of another shape.
    """
    expected = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    present = {name: tuple(value.shape) for name, value in state.items()}
    for words, names in (
        (missing, expected.keys() - present.keys()),
        ("are not of this network", present.keys() - expected.keys()),
        ("have another shape", {n for n in expected.keys() & present.keys() if expected[n] != present[n]}),
    ):
        if names:
            raise RewardError(f"{len(names)} of {len(expected)} tensors {words}, e.g. {min(names)}")


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a new temporary folder to fill.

    After the block the folder is renamed to `target`, or removed if the block failed.
    """
    work = target.with_name(f".{target.name}.{os.getpid()}.new")
    try:
        work.mkdir(parents=True)
        yield work
        os.rename(work, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def move(network: nn.Module, device: str | None, name: str) -> None:
    """Move the network to the device that a scorer's option `device` names.

    If the option is None, the network stays on the host.

    Args:
        name: Name of the scorer, for the error message.
    """
    try:
        network.to(torch.device(device) if device else None)
    except (RuntimeError, AssertionError) as error:
        raise RewardError(f"{name} cannot be put on device {device!r}: {str(error).splitlines()[0]}") from error
