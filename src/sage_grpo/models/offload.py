"""Use of frozen components that stay on the host, by copies on the device for as long as they compute."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def onloaded(parts: Sequence[nn.Module], device: torch.device) -> Iterator[None]:
    """Let `parts` compute with copies of their weights on `device` inside the block.

    The original weights stay where they are, so nothing is copied back at the end.
    """
    slots: list[tuple[dict[str, Any], str, Tensor]] = [
        (slot, name, home)
        for part in parts
        for layer in part.modules()
        for slot in (layer._parameters, layer._buffers)
        for name, home in slot.items()
        if home is not None
    ]
    copies: dict[Tensor, Tensor] = {}  # tied weights are one tensor, and stay one
    try:
        for slot, name, home in slots:
            if home not in copies:
                there = home.detach().to(device)
                copies[home] = nn.Parameter(there, requires_grad=False) if isinstance(home, nn.Parameter) else there
            slot[name] = copies[home]
        yield
    finally:
        for slot, name, home in slots:
            slot[name] = home
