"""What a run ran on. The record travels with results, so it names neither a person nor a machine."""

import os
import platform
import re
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from sage_grpo import __version__

PACKAGES = (
    "torch", "numpy", "pydantic", "safetensors", "diffusers", "transformers", "peft", "accelerate", "triton",
    "av", "pillow", "tensorboard", "wandb", "trackio", "ray",
)  # fmt: skip
SECRET_OPTION = re.compile(
    r"^-{0,2}[\w.-]*(token|secret|password|passwd|apikey|credential|(?:^|[_.-])key)[\w.-]*$", re.I
)
SECRET_VALUE = re.compile(r"\b(hf_|sk-|ghp_|github_pat_|wandb_v1_)[\w-]{8,}|//[^/\s@]+@")
HOME = re.compile(r"(?<![\w.])(/home|/Users|[A-Za-z]:\\Users)[/\\][^/\\\s=]+|(?<![\w.])/root(?=/|$)")
HIDDEN = "***"


def describe_environment() -> dict[str, Any]:
    """JSON-ready. No environment variables, no tokens, no user or host name."""
    cuda = torch.cuda.is_available()
    return {
        "sage_grpo": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "cuda": torch.version.cuda if cuda else None,
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else ["cpu"],
        "cpu_count": os.cpu_count(),
        "git_commit": _git_commit(),
        "command": clean_command(sys.argv),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def clean_command(arguments: list[str]) -> list[str]:
    """A command line fit to be shown: secrets hidden, home folders as ~, the program by its name only."""
    out: list[str] = []
    hide_next = False
    for argument in arguments:
        option, equals, _ = argument.partition("=")
        if hide_next and not argument.startswith("-"):
            out.append(HIDDEN)
        elif equals and SECRET_OPTION.match(option):
            out.append(f"{option}={HIDDEN}")
        else:
            shown = SECRET_VALUE.sub(HIDDEN, argument)
            home = str(Path.home())
            shown = shown.replace(home, "~") if len(home) > 1 else shown  # "/" as home is no one's name
            out.append(HOME.sub("~", shown))
        hide_next = not equals and argument.startswith("-") and bool(SECRET_OPTION.match(argument))
    return [Path(out[0]).name, *out[1:]] if out else out


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """Commit of the current folder, with "-dirty" after it if files differ from it; None outside of git."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None
