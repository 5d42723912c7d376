"""Checks of whether this machine and its files suffice for a recipe. Each says what was found, or what to change."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch

from sage_grpo.config import ConfigError, RecipeConfig
from sage_grpo.distributed.device import HOST, choose_device
from sage_grpo.files import nearest_folder
from sage_grpo.preflight.first_run.check import Check
from sage_grpo.preflight.plan.memory import Memory
from sage_grpo.rewards.errors import RewardError
from sage_grpo.training import build

ROOM = 0.92  # of a device's memory that a plan may use


def machine_checks(config: RecipeConfig, plan: Memory, disk: float) -> Iterator[Check]:
    """Yield the results of the checks of torch, devices, memory and disk, in the order in which a run would need them.

    Args:
        config: The recipe.
        plan: The planned memory of a device, in bytes.
        disk: The bytes that the run will write.
    """
    device = choose_device(config.tuning.device)
    count = torch.accelerator.device_count() if device != HOST else 1
    processes = config.parallel.processes
    yield Check("torch", True, f"{torch.__version__}, built for {torch.version.cuda or torch.version.hip or HOST}")
    yield Check(
        "devices",
        device == HOST or count >= processes,
        f"{count} × {device_name(device)}",
        f"the recipe is laid out for {processes}: parallel.processes={count}",
    )
    there = device_memory(device)
    yield Check(
        "memory",
        plan.peak <= ROOM * there,
        f"{plan.peak / 1e9:.1f} GB planned of {there / 1e9:.1f} GB",
        "`sage-grpo plan` says which phase is the fullest, and what to change",
    )
    folder = nearest_folder(Path(config.run.out))
    free = shutil.disk_usage(folder).free
    yield Check(
        "disk",
        disk <= free,
        f"{disk / 1e9:.1f} GB planned, {free / 1e9:.1f} GB free in {folder.name or folder}",
        "another run.out, or a smaller run.keep",
    )


def files_checks(config: RecipeConfig) -> Iterator[Check]:
    path = config.model.path
    if path is not None:
        local = Path(path).expanduser()
        missing = path.startswith((".", "/", "~")) and not local.is_dir()
        state = "is here" if local.is_dir() else "is not there" if missing else "is a hub name, downloaded when needed"
        yield Check("checkpoint", not missing, f"{path} {state}", "model.path=FOLDER")
    try:
        build.build_prompts(config)
        yield Check("prompts", True, config.prompts.path or "the model's own")
    except (ConfigError, ValueError, OSError) as error:
        yield Check("prompts", False, str(error).splitlines()[0], "prompts.path=FILE")
    try:
        build.build_rewards(config)
        yield Check("rewards", True, ", ".join(entry.type for entry in config.rewards))
    except (ConfigError, RewardError, OSError) as error:
        yield Check("rewards", False, str(error).splitlines()[0], "see docs/rewards.md")


def device_name(device: torch.device) -> str:
    if device == HOST:
        return str(HOST)
    return str(torch.get_device_module(device).get_device_name(device))


def device_memory(device: torch.device) -> int:
    if device == HOST:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(torch.accelerator.get_memory_info(device)[1])
