"""The choice of the device that a run computes on, and functions that depend on the kind of device. No other module
chooses a device."""

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
    """Return the device that has this name in recipes; "auto" is an accelerator if there is one, else the CPU.

    An accelerator also becomes the current device of this process. If several processes share a machine, pass the
    `local_rank` of this one, to get the accelerator with that number.

    Raises:
        DeviceError: The device is unknown, or this machine does not have it.
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
    """Let torch's memory allocator extend its segments of GPU memory, unless the user has configured the allocator.

    Encoders, activations and tiles take turns in GPU memory. In segments of fixed size, none fits into what another one
    left free. torch reads this setting when it first allocates, so call this function before.
    """
    if allocator() is None:
        name = ALLOCATOR[Version(torch.__version__) < Version("2.10")]  # the second one is the older name
        os.environ[name] = GROWING


def allocator() -> str | None:
    """Return the environment variable that configures torch's allocator of GPU memory, as `NAME=value`.

    Return None if no such variable is set.
    """
    return next((f"{name}={os.environ[name]}" for name in ALLOCATOR if name in os.environ), None)


def median_seconds(call: Callable[[], object], device: torch.device, rounds: int = 5) -> float:
    """Return the median time of `rounds` calls in seconds, after one call to warm up.

    The time of a call includes the work that it starts on `device`.
    """

    def timed() -> float:
        start = time.perf_counter()
        call()
        if device.type != HOST.type:
            torch.accelerator.synchronize(device)
        return time.perf_counter() - start

    timed()
    return median(timed() for _ in range(rounds))


def peak_memory(device: torch.device) -> float:
    """Return the largest number of bytes that tensors took on the device since the last call of this function.

    The result is 0 for the CPU, where torch does not count the memory of tensors.
    """
    if device.type == HOST.type:
        return 0.0
    peak = float(torch.accelerator.max_memory_allocated(device))
    torch.accelerator.reset_peak_memory_stats(device)
    return peak


def backend_for(device: torch.device) -> str:
    """Return the name of torch's backend for messages between processes that compute on this kind of device.

    CPUs use gloo. GPUs use NCCL for tensors on a GPU, and gloo for small tensors on the CPU.
    """
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


def backends() -> Sequence[str]:
    """Return which backends for messages between processes this build of torch has, of "gloo" and "nccl"."""
    known = {"gloo": torch.distributed.is_gloo_available, "nccl": torch.distributed.is_nccl_available}
    return [name for name, there in known.items() if torch.distributed.is_available() and there()]


class DeviceRandom:
    """The accelerator's random state, which checkpoints save for models and rewards that draw random numbers there.

    The random state of the CPU is saved by the training loop.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def state_dict(self) -> dict[str, Any]:
        if self.device.type == HOST.type:
            return {}
        return {self.device.type: torch.get_device_module(self.device).get_rng_state(self.device)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the random state. A state from another kind of device, or from the CPU, is ignored."""
        if self.device.type in state:
            torch.get_device_module(self.device).set_rng_state(state[self.device.type], self.device)
