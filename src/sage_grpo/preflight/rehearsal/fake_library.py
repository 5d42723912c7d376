"""The small library that makes a CPU build of torch accept CUDA devices.

It is compiled once and kept in the user's cache.
"""

import hashlib
import importlib.util
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sage_grpo.config import ConfigError
from sage_grpo.files import draft_of

SOURCE = Path(__file__).with_name("fake_device.cpp")
COMPILER = "g++"


def torch_folder() -> Path:
    """Return the folder of torch without importing it.

    The library must be loaded before torch first asks about CUDA.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise ConfigError("--fake-cuda needs torch: pip install torch")
    return Path(spec.origin).parent


def check_build(version: dict[str, Any], platform: str = sys.platform) -> None:
    """Refuse a build of torch that is not for CPUs on Linux. `version` has the variables of torch's version.py.

    Other platforms were not tried. In a build for GPUs, the library's CUDA hooks would meet those of torch.
    """
    if platform != "linux":
        raise ConfigError(f"--fake-cuda was only tried on Linux, and this is {platform}; use a Linux container")
    for toolkit in ("CUDA", "HIP", "XPU"):
        if built := version.get(toolkit.lower()):
            raise ConfigError(
                f"--fake-cuda pretends a GPU on a CPU build of torch, and torch {version['__version__']} is built for "
                f"{toolkit} {built}. Use a virtual environment with the CPU build, or on a machine with a GPU "
                "the plain `sage-grpo rehearse`"
            )


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sage-grpo"


def build_shim(emit: Callable[[str], None] = lambda text: None) -> Path:
    """Return the path of the library for the installed torch. Compile the library if it is not there yet.

    The file is written whole or not at all. `emit` gets a message before compilation.
    """
    torch = torch_folder()
    version = runpy.run_path(str(torch / "version.py"))
    check_build(version)
    # of this torch and no other of its version: the library names the folder, and an environment may be removed
    code = hashlib.sha256(SOURCE.read_bytes() + bytes(torch)).hexdigest()[:16]
    library = cache_folder() / f"fake-device-{version['__version__']}-{code}.so"
    if library.exists():
        return library
    compiler = shutil.which(COMPILER)
    if compiler is None:
        raise ConfigError(
            f"--fake-cuda compiles a small library once, and there is no {COMPILER} here; install it: "
            "apt install g++, dnf install gcc-c++ or conda install gxx"
        )
    emit("compiling a small library, once for this version of torch")
    with draft_of(library) as draft:  # two that compile at the same time write the same
        _compile(compiler, torch, str(draft))
    return library


def _compile(compiler: str, torch: Path, out: str) -> None:
    command = [compiler, "-std=c++20", "-shared", "-fPIC", f"-I{torch}/include", str(SOURCE), f"-L{torch}/lib"]
    command += ["-lc10", "-ltorch_cpu", f"-Wl,-rpath,{torch}/lib", "-o", out]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise ConfigError(f"--fake-cuda: {compiler} could not compile {SOURCE.name}: {' '.join(errors[:1])}")
