"""Latents that consist of several tensors, such as video and sound.

The algorithm sees such a latent as one row of numbers, the network as its parts. Sampling, ratios and KL treat every
number of a latent alike, so no other module of the algorithm needs to know the parts.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LatentParts:
    """The layout of a latent packed into one row: the shape of each part in one sample, by name, in row order."""

    shapes: Mapping[str, tuple[int, ...]]

    @property
    def shape(self) -> tuple[int]:
        """The shape (N,) of one sample's packed row, which a model returns as its `latent_shape`."""
        return (sum(map(math.prod, self.shapes.values())),)

    def pack(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Pack parts (B, …), given by name, into rows (B, N)."""
        return torch.cat([parts[name].flatten(1) for name in self.shapes], 1)

    def unpack(self, x: Tensor) -> dict[str, Tensor]:
        """Split rows (B, N) into parts (B, …) by name."""
        rows = torch.split(x, [math.prod(shape) for shape in self.shapes.values()], 1)
        return {name: row.reshape(-1, *shape) for (name, shape), row in zip(self.shapes.items(), rows, strict=True)}
