"""Latents of several tensors, such as video and sound: one row of numbers to the algorithm, parts to the network.

Sampling, ratios and KL treat every number of a latent alike, so nothing else has to know of the parts.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LatentParts:
    """By name the shape of one sample's part; their order is that of the row."""

    shapes: Mapping[str, tuple[int, ...]]

    @property
    def shape(self) -> tuple[int]:
        """What `latent_shape` says."""
        return (sum(map(math.prod, self.shapes.values())),)

    def pack(self, parts: Mapping[str, Tensor]) -> Tensor:
        """(B, …) by name → (B, N)."""
        return torch.cat([parts[name].flatten(1) for name in self.shapes], 1)

    def unpack(self, x: Tensor) -> dict[str, Tensor]:
        """(B, N) → (B, …) by name."""
        rows = torch.split(x, [math.prod(shape) for shape in self.shapes.values()], 1)
        return {name: row.reshape(-1, *shape) for (name, shape), row in zip(self.shapes.items(), rows, strict=True)}
