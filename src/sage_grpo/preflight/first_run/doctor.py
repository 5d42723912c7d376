"""Checks of this machine. Each says what was found, or how to fix it. Nothing is downloaded, and no file is kept."""

import os
import platform
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from packaging.requirements import Requirement

from sage_grpo.evaluation.catalogue import catalogue
from sage_grpo.files import nearest_folder
from sage_grpo.preflight.first_run.check import Check
from sage_grpo.registry import installed_version, packages_of

OLDEST = (3, 11)
LITTLE = 20e9  # bytes on disk: a checkpoint of adapters, samples and a report need less
LITTLE_SHARED = 1e9  # bytes of /dev/shm, through which processes and loaders hand on tensors
PORT = 29500  # torchrun's own
PATIENCE = 3.0  # seconds for an answer of the hub
EXTRAS = ("models", "serve", "parquet", "wandb", "trackio")  # scorers have lines of their own


def examine(folder: Path) -> dict[str, list[Check]]:
    """Run all checks of this machine, and return their results by section. `folder` is where runs will be written."""
    sections: dict[str, Callable[[], Iterator[Check]]] = {
        "Software": software,
        "Devices": devices,
        "Room": lambda: room(folder),
        "Network": network,
        "Scorers": scorers,
    }
    return {name: list(look()) for name, look in sections.items()}


def summary(sections: Mapping[str, list[Check]]) -> dict[str, Any]:
    """Return the results of the checks as values for JSON, and as `broken` the number that must be fixed."""
    found = {name: [asdict(check) for check in checks] for name, checks in sections.items()}
    return {"sections": found, "broken": sum(check.broken for checks in sections.values() for check in checks)}


# Software --------------------------------------------------------------------------------------------------------


def software() -> Iterator[Check]:
    here = platform.python_version()
    wanted = ".".join(map(str, OLDEST))
    newer = tuple(map(int, platform.python_version_tuple()[:2])) >= OLDEST
    yield Check("Python", newer, here, f"install Python {wanted} or newer")
    try:
        lines = requires("sage-grpo") or []
    except PackageNotFoundError:
        lines = []
        yield Check("sage-grpo", False, "runs from a folder, and is not installed", "pip install .", needed=False)
    for line in lines:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            check = package(requirement)
            if not check.ok or requirement.name == "torch":
                yield check
    for extra in EXTRAS:
        missing = [name for name in packages_of(extra) if installed_version(name) is None]
        line = f"pip install 'sage-grpo[{extra}]'"
        yield Check(f"extra {extra}", not missing, f"no {missing[0]}" if missing else "installed", line, needed=False)
    compiler = next((found for name in ("g++", "clang++") if (found := shutil.which(name))), None)
    fix = "apt-get install g++, or leave tuning.compile off"
    yield Check("compiler", compiler is not None, Path(compiler).name if compiler else "none", fix, needed=False)


def package(requirement: Requirement) -> Check:
    here = installed_version(requirement.name)
    fix = f"pip install '{requirement.name}{requirement.specifier}'"
    if here is None:
        return Check(requirement.name, False, "not installed", fix)
    good = requirement.specifier.contains(here, prereleases=True)
    return Check(requirement.name, good, here, f"{fix} ({here} is not tested with this version)")


# Devices ---------------------------------------------------------------------------------------------------------


def devices() -> Iterator[Check]:
    try:
        import torch  # noqa: PLC0415 - a broken one is found here, not when this file is read

        from sage_grpo.distributed.device import HOST, allocator, backends, choose_device  # noqa: PLC0415
        from sage_grpo.preflight.first_run.attention import attention_report, fastest  # noqa: PLC0415
        from sage_grpo.preflight.first_run.machine import device_memory, device_name  # noqa: PLC0415
    except (ImportError, OSError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        yield Check("torch", False, first, "pip install --force-reinstall torch")
        return
    device = choose_device()
    built = torch.version.cuda or torch.version.hip
    if device == HOST:
        reason = f"torch is built for {built}, and finds none" if built else "torch is built for CPUs"
        fix = "check the driver with nvidia-smi" if built else "on a GPU machine install torch's CUDA build"
        yield Check("GPUs", False, f"none ({reason})", f"{fix}; the laboratory and rehearsals need none", needed=False)
    else:
        count = torch.accelerator.device_count()
        yield Check("GPUs", True, f"{count} × {device_name(device)}, {device_memory(device) / 1e9:.0f} GB each")
        yield Check("GPU memory", True, allocator() or "torch's own settings")
        kind = torch.get_device_module(device)
        fix = "tuning.precision=float32"
        half = bool(kind.is_bf16_supported())
        yield Check("bfloat16", half, "in hardware" if half else "not in hardware", fix, needed=False)
    names = sorted(backends())
    good = device == HOST or len(names) > 1
    fix = "install a build of torch with NCCL: more GPUs than one need it"
    yield Check("processes", good, ", ".join(names), fix, needed=False)
    rows = [row for row in attention_report(device) if not row["mask"]]
    works = [f"{row['kernel']} {row['seconds']['training'] * 1e3:.1f} ms" for row in rows if row["equal"] is not None]
    yield Check("attention", bool(works), ", ".join(works) or "none", "pip install --force-reinstall torch")
    if faster := fastest(rows):
        found = f"another kernel than torch's choice is faster at {' × '.join(map(str, rows[0]['shape']))}"
        yield Check("attention kernel", False, found, f"tuning.attention={faster}", needed=False)
    memory = device_memory(HOST)
    yield Check("host", True, f"{os.cpu_count()} cores, {memory / 1e9:.0f} GB of memory")


# Room ------------------------------------------------------------------------------------------------------------


def room(folder: Path) -> Iterator[Check]:
    there, name = nearest_folder(folder), f"folder {folder}"
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"0" * 4096)
            file.flush()
            os.fsync(file.fileno())
        yield Check(name, True, "can be written")
    except OSError as error:
        fix = f"give another one: sage-grpo doctor --folder DIR, run.out=DIR (or chmod u+w {there})"
        yield Check(name, False, error.strerror or str(error), fix)
    free = shutil.disk_usage(there).free
    yield Check("disk", free >= LITTLE, f"{free / 1e9:.1f} GB free", "free some, or choose another", needed=False)
    shared = Path("/dev/shm")
    if shared.exists():
        size = shutil.disk_usage(shared).total
        fix = "docker run --shm-size=8g …: processes of one machine talk through it"
        yield Check("shared memory", size >= LITTLE_SHARED, f"{size / 1e9:.1f} GB", fix, needed=False)


# Network ---------------------------------------------------------------------------------------------------------


def network() -> Iterator[Check]:
    yield port(int(os.environ.get("MASTER_PORT", PORT)))
    try:
        from huggingface_hub import constants, get_token  # noqa: PLC0415 - comes with the extra `models`
    except ImportError:
        yield Check("hub", False, "no library for it", "pip install 'sage-grpo[models]'", needed=False)
        return
    token = get_token() is not None
    yield Check("hub token", token, "found" if token else "none", "HF_TOKEN=…, for checkpoints that ask", needed=False)
    if constants.HF_HUB_OFFLINE:
        yield Check("hub", False, "switched off (HF_HUB_OFFLINE)", "unset it to download weights", needed=False)
        return
    address = urlparse(constants.ENDPOINT)
    try:
        socket.create_connection((address.hostname or "", address.port or 443), PATIENCE).close()
        yield Check("hub", True, "answers")
    except OSError as error:
        fix = "set HTTPS_PROXY or HF_ENDPOINT, or copy checkpoints and name their folder (model.path)"
        yield Check("hub", False, f"does not answer ({error.strerror or error})", fix, needed=False)


def port(number: int) -> Check:
    """Check whether the TCP port `number` is free for the processes of a run to meet at."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            free.bind(("", number))
            free.listen(1)
        except OSError as error:
            fix = f"torchrun --master-port={number + 1}, or --standalone on one machine"
            return Check(f"port {number}", False, error.strerror or str(error), fix, needed=False)
    return Check(f"port {number}", True, "free for torchrun")


# Scorers ---------------------------------------------------------------------------------------------------------


def scorers() -> Iterator[Check]:
    for entry in catalogue():
        if entry.laboratory:
            continue
        if entry.missing:
            yield Check(entry.name, False, f"no {entry.missing}", entry.install or "", needed=False)
        elif entry.required:
            yield Check(entry.name, True, f"installed; a recipe gives it {', '.join(entry.required)}")
        else:
            yield Check(entry.name, True, "weights come from the hub" if entry.downloads else "ready")
