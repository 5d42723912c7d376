"""The choice of a run's device, and what depends on its kind. No other module chooses one."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import torch
from packaging.version import Version

from sage_grpo.errors import UserError

HOST = torch.device("cpu")
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
GROWING = "expandable_segments:True"


class DeviceError(UserError, ValueError):
    """Raised when the device that a recipe names is unknown, or cannot be used here."""


def choose_device(name: str = "auto", local_rank: int | None = None) -> torch.device:
    """Return the device of this process: with `auto`, an accelerator, or the host where there is none.

    Give `local_rank` where several processes share a machine: each then takes the accelerator of its number.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if name == "auto":
        device = torch.device(accelerator.type) if accelerator else HOST
    else:
        try:
            device = torch.device(name)
        except RuntimeError as error:
            raise DeviceError(f"tuning.device={name!r} is not a device; use auto, cpu, cuda or cuda:1") from error
    if device.type == HOST.type:
        return HOST
    if accelerator is None or accelerator.type != device.type:
        there = accelerator.type if accelerator else "none"
        raise DeviceError(f"tuning.device={name!r} is not available here (accelerator: {there}); use auto or cpu")
    if device.type == "cuda":
        grow_segments()
    return _numbered(device, local_rank)


def _numbered(device: torch.device, local_rank: int | None) -> torch.device:
    """Return the accelerator with its number, and make it the current one of this process."""
    named, count = device.index, torch.accelerator.device_count()
    if local_rank is not None and named is not None:
        raise DeviceError(
            f"tuning.device={str(device)!r} would put all processes on one device; use auto or {device.type}"
        )
    index = named or local_rank or 0
    if index >= count:
        there = f"this machine has {count} of {device.type}, counted from 0"
        if named is None:
            raise DeviceError(f"process {index} has no device of its own: {there}; start {count} processes")
        raise DeviceError(f"tuning.device={str(device)!r} is not there: {there}")
    torch.accelerator.set_device_index(index)
    return torch.device(device.type, index)


def grow_segments() -> None:
    """Let torch grow its pieces of GPU memory.

    Encoders, activations and tiles take turns, and none fits into what another left.
    torch reads the setting when it first allocates. A setting of the user's stays as it is.
    """
    if allocator() is None:
        name = ALLOCATOR[Version(torch.__version__) < Version("2.10")]  # the second one is the older name
        os.environ[name] = GROWING


def allocator() -> str | None:
    """Return the environment's setting of torch's allocator of GPU memory, as `NAME=value`, or None."""
    return next((f"{name}={os.environ[name]}" for name in ALLOCATOR if name in os.environ), None)


def median_seconds(call: Callable[[], object], device: torch.device, rounds: int = 5) -> float:
    """Return the median seconds of `rounds` calls, after one that warms up. A call includes its work on the device."""

    def timed() -> float:
        start = time.perf_counter()
        call()
        if device.type != HOST.type:
            torch.accelerator.synchronize(device)
        return time.perf_counter() - start

    timed()
    return median(timed() for _ in range(rounds))


def peak_memory(device: torch.device) -> float:
    """Return the most bytes that the device held since the last call; 0 for the host, which counts no tensors."""
    if device.type == HOST.type:
        return 0.0
    peak = float(torch.accelerator.max_memory_allocated(device))
    torch.accelerator.reset_peak_memory_stats(device)
    return peak


def backend_for(device: torch.device) -> str:
    """Return torch's backend for messages between processes with this kind of device.

    Hosts use gloo. GPUs use NCCL, and gloo for small messages between their hosts.
    """
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


def backends() -> Sequence[str]:
    """Return the names of the backends for messages between processes that this build of torch has."""
    known = {"gloo": torch.distributed.is_gloo_available, "nccl": torch.distributed.is_nccl_available}
    return [name for name, there in known.items() if torch.distributed.is_available() and there()]


class DeviceRandom:
    """The accelerator's random state, for a model or reward that draws its own numbers; the loop keeps the host's."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def state_dict(self) -> dict[str, Any]:
        if self.device.type == HOST.type:
            return {}
        return {self.device.type: torch.get_device_module(self.device).get_rng_state(self.device)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the random state. That of another kind of device, or of a run on the host, is ignored."""
        if self.device.type in state:
            torch.get_device_module(self.device).set_rng_state(state[self.device.type], self.device)
