"""What this machine can do, one line each: found, or how to mend it. Nothing is downloaded, and nothing is kept."""

import os
import platform
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlparse

from packaging.requirements import Requirement

from sage_grpo.evaluation.catalogue import catalogue
from sage_grpo.registry import packages_of

State = Literal["ok", "optional", "broken"]
OLDEST = (3, 11)
LITTLE = 20e9  # bytes on disk: a checkpoint of adapters, samples and a report need less
LITTLE_SHARED = 1e9  # bytes of /dev/shm, through which processes and loaders hand on tensors
PORT = 29500  # torchrun's own
PATIENCE = 3.0  # seconds for an answer of the hub
EXTRAS = ("models", "serve", "parquet", "wandb", "trackio")  # scorers are told by themselves


@dataclass(frozen=True)
class Finding:
    name: str
    state: State
    found: str
    fix: str = ""


def examine(folder: Path) -> dict[str, list[Finding]]:
    """By section. `folder` is where runs shall be written."""
    sections: dict[str, Callable[[], Iterator[Finding]]] = {
        "Software": software,
        "Devices": devices,
        "Room": lambda: room(folder),
        "Network": network,
        "Scorers": scorers,
    }
    return {name: list(find()) for name, find in sections.items()}


def summary(sections: dict[str, list[Finding]]) -> dict[str, Any]:
    """As JSON, with the number of those that must be mended."""
    found = {name: [asdict(finding) for finding in findings] for name, findings in sections.items()}
    broken = sum(finding.state == "broken" for findings in sections.values() for finding in findings)
    return {"sections": found, "broken": broken}


def judge(name: str, good: bool, found: str, fix: str, otherwise: State = "broken") -> Finding:
    return Finding(name, "ok", found) if good else Finding(name, otherwise, found, fix)


# Software --------------------------------------------------------------------------------------------------------


def software() -> Iterator[Finding]:
    here = platform.python_version()
    wanted = ".".join(map(str, OLDEST))
    newer = tuple(map(int, platform.python_version_tuple()[:2])) >= OLDEST
    yield judge("Python", newer, here, f"install Python {wanted} or newer")
    for line in requires("sage-grpo") or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            finding = package(requirement)
            if finding.state != "ok" or requirement.name == "torch":
                yield finding
    for extra in EXTRAS:
        missing = [name for name in packages_of(extra) if installed(name) is None]
        line = f"pip install 'sage-grpo[{extra}]'"
        yield judge(f"extra {extra}", not missing, f"no {missing[0]}" if missing else "installed", line, "optional")
    compiler = next((found for name in ("g++", "clang++") if (found := shutil.which(name))), None)
    fix = "apt-get install g++, or leave tuning.compile off"
    yield judge("compiler", compiler is not None, Path(compiler).name if compiler else "none", fix, "optional")


def package(requirement: Requirement) -> Finding:
    here = installed(requirement.name)
    fix = f"pip install '{requirement.name}{requirement.specifier}'"
    if here is None:
        return Finding(requirement.name, "broken", "not installed", fix)
    good = requirement.specifier.contains(here, prereleases=True)
    return judge(requirement.name, good, here, f"{fix} ({here} is not tested with this version)")


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


# Devices ---------------------------------------------------------------------------------------------------------


def devices() -> Iterator[Finding]:
    try:
        import torch  # noqa: PLC0415 - a broken one is found here, not when this file is read

        from sage_grpo.distributed.device import HOST, backends, choose_device  # noqa: PLC0415
        from sage_grpo.first_run.attention import attention_report  # noqa: PLC0415
        from sage_grpo.first_run.machine import device_memory, device_name  # noqa: PLC0415
    except (ImportError, OSError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        yield Finding("torch", "broken", first, "pip install --force-reinstall torch")
        return
    device = choose_device()
    built = torch.version.cuda or torch.version.hip
    if device == HOST:
        reason = f"torch is built for {built}, and finds none" if built else "torch is built for CPUs"
        fix = "check the driver with nvidia-smi" if built else "on a GPU machine install torch's CUDA build"
        yield Finding("GPUs", "optional", f"none ({reason})", f"{fix}; the laboratory and rehearsals need none")
    else:
        count = torch.accelerator.device_count()
        yield Finding("GPUs", "ok", f"{count} × {device_name(device)}, {device_memory(device) / 1e9:.0f} GB each")
        kind = torch.get_device_module(device)
        fix = "tuning.precision=float32: this GPU has no bfloat16"
        yield judge("bfloat16", bool(kind.is_bf16_supported()), "in hardware", fix, "optional")
    names = sorted(backends())
    good = device == HOST or len(names) > 1
    yield judge("processes", good, ", ".join(names), "install a build of torch with NCCL: more GPUs than one need it")
    rows = [row for row in attention_report(device) if not row["mask"]]
    works = [row["kernel"] for row in rows if row["equal"] is not None]
    yield judge("attention", bool(works), ", ".join(works) or "none", "pip install --force-reinstall torch")
    memory = device_memory(HOST)
    yield Finding("host", "ok", f"{os.cpu_count()} cores, {memory / 1e9:.0f} GB of memory")


# Room ------------------------------------------------------------------------------------------------------------


def room(folder: Path) -> Iterator[Finding]:
    there = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    name = f"folder {folder}"
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"0" * 4096)
            file.flush()
            os.fsync(file.fileno())
        yield Finding(name, "ok", "can be written")
    except OSError as error:
        fix = f"give another one: sage-grpo doctor --folder DIR, run.out=DIR (or chmod u+w {there})"
        yield Finding(name, "broken", error.strerror or str(error), fix)
    free = shutil.disk_usage(there).free
    yield judge("disk", free >= LITTLE, f"{free / 1e9:.1f} GB free", "free some, or choose another folder", "optional")
    shared = Path("/dev/shm")
    if shared.exists():
        size = shutil.disk_usage(shared).total
        fix = "docker run --shm-size=8g …: processes of one machine talk through it"
        yield judge("shared memory", size >= LITTLE_SHARED, f"{size / 1e9:.1f} GB", fix, "optional")


# Network ---------------------------------------------------------------------------------------------------------


def network() -> Iterator[Finding]:
    yield port(int(os.environ.get("MASTER_PORT", PORT)))
    try:
        from huggingface_hub import constants, get_token  # noqa: PLC0415 - comes with the extra `models`
    except ImportError:
        yield Finding("hub", "optional", "no library for it", "pip install 'sage-grpo[models]'")
        return
    token = get_token() is not None
    yield judge("hub token", token, "found" if token else "none", "HF_TOKEN=…, for checkpoints that ask", "optional")
    if constants.HF_HUB_OFFLINE:
        yield Finding("hub", "optional", "switched off (HF_HUB_OFFLINE)", "unset HF_HUB_OFFLINE to download weights")
        return
    address = urlparse(constants.ENDPOINT)
    try:
        socket.create_connection((address.hostname or "", address.port or 443), PATIENCE).close()
        yield Finding("hub", "ok", "answers")
    except OSError as error:
        fix = "set HTTPS_PROXY or HF_ENDPOINT, or copy checkpoints and name their folder (model.path)"
        yield Finding("hub", "optional", f"does not answer ({error.strerror or error})", fix)


def port(number: int) -> Finding:
    """Whether processes can meet there."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            free.bind(("", number))
            free.listen(1)
        except OSError as error:
            fix = f"torchrun --master-port={number + 1}, or --standalone on one machine"
            return Finding(f"port {number}", "optional", error.strerror or str(error), fix)
    return Finding(f"port {number}", "ok", "free for torchrun")


# Scorers ---------------------------------------------------------------------------------------------------------


def scorers() -> Iterator[Finding]:
    for entry in catalogue():
        if entry.laboratory:
            continue
        if entry.missing:
            yield Finding(entry.name, "optional", f"no {entry.missing}", entry.install or "")
        elif entry.required:
            yield Finding(entry.name, "ok", f"installed; a recipe gives it {', '.join(entry.required)}")
        else:
            yield Finding(entry.name, "ok", "weights come from the hub" if entry.downloads else "ready")
