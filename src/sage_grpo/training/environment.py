"""A record of the software and devices of a run. It is published with results, so it names no person and no machine."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import torch

from sage_grpo import __version__
from sage_grpo.distributed.device import allocator
from sage_grpo.registry import installed_version
from sage_grpo.runs.redact import clean_command

PACKAGES = (
    "torch",
    "numpy",
    "pydantic",
    "safetensors",
    "diffusers",
    "transformers",
    "peft",
    "accelerate",
    "triton",
    "av",
    "pillow",
    "tensorboard",
    "wandb",
    "trackio",
    "ray",
)


def describe_environment() -> dict[str, Any]:
    """Return package versions, devices, git commit, command line and the current time as `started`, as values for JSON.

    The record has no tokens, no user or host name, and no environment variable except the allocator's.
    """
    cuda = torch.cuda.is_available()
    return {
        "sage_grpo": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": {name: installed for name in PACKAGES if (installed := installed_version(name))},
        "cuda": torch.version.cuda if cuda else None,
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else ["cpu"],
        "allocator": allocator() if cuda else None,
        "cpu_count": os.cpu_count(),
        "git_commit": _git_commit(),
        "command": clean_command(sys.argv),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _git_commit() -> str | None:
    """Return the commit of the current folder, with "-dirty" after it if files differ from it; None outside of git."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None
