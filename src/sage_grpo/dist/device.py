"""The one place that decides on a device. Nothing else names one."""

import torch

HOST = torch.device("cpu")


class DeviceError(ValueError):
    """The device that was asked for is not there."""


def choose_device(name: str = "auto", local_rank: int = 0) -> torch.device:
    """`auto` is this process's accelerator, or the host where there is none."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if name == "auto":
        if accelerator is None:
            return HOST
        torch.accelerator.set_device_index(local_rank)
        return torch.device(accelerator.type, local_rank)
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceError(f"tuning.device={name!r} is not a device; use auto, cpu, cuda or cuda:1") from error
    if device.type != HOST.type and (accelerator is None or accelerator.type != device.type):
        there = accelerator.type if accelerator else "none"
        raise DeviceError(f"tuning.device={name!r} is not available here (accelerator: {there}); use auto or cpu")
    return device


def backend_for(device: torch.device) -> str:
    """How processes talk: NCCL between GPUs, gloo between hosts; on GPUs both, for small news travels on the host."""
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
