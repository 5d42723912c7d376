"""ImageBind's networks for vision and audio, in plain torch. Both are transformers on patches."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SIDE, FRAMES, PATCH = 224, 2, 14  # what is seen together: pixels, frames, pixels a side of a patch
BANDS, STEPS, SPOT, STRIDE = 128, 204, 16, 10  # what is heard together: bands, steps of 10 ms; patches that overlap
EPSILON = 1e-6
RELEASED: Mapping[str, Any] = {
    "output": 1024,
    "vision": {"width": 1280, "layers": 32, "heads": 16},
    "audio": {"width": 768, "layers": 12, "heads": 12},
}


class Attention(nn.Module):
    """Attention of each token to all tokens and, with `spare`, also to a learned token that is no part of the input."""

    def __init__(self, width: int, heads: int, spare: bool) -> None:
        super().__init__()
        self.heads = heads
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.spare_key = nn.Parameter(torch.empty(1, 1, width)) if spare else None
        self.spare_value = nn.Parameter(torch.empty(1, 1, width)) if spare else None

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.into(x).chunk(3, dim=-1)
        if self.spare_key is not None and self.spare_value is not None:
            key = torch.cat([key, self.spare_key.expand(len(x), -1, -1)], dim=1)
            value = torch.cat([value, self.spare_value.expand(len(x), -1, -1)], dim=1)
        parts = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (query, key, value))
        mixed: Tensor = self.out(F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))
        return mixed


class Block(nn.Module):
    def __init__(self, width: int, heads: int, spare: bool) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width, EPSILON), nn.LayerNorm(width, EPSILON)
        self.attention = Attention(width, heads, spare)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        mixed: Tensor = x + self.mlp(self.norm_2(x))
        return mixed


class Encoder(nn.Module):
    """A transformer on patches, with position embeddings and a learned token in front of the patches.

    The output at the learned token, scaled to length 1, is the embedding.
    """

    def __init__(
        self, patch: nn.Module, patches: int, width: int, layers: int, heads: int, output: int, spare: bool
    ) -> None:
        super().__init__()
        self.patch = patch
        self.patch_norm = nn.LayerNorm(width) if spare else nn.Identity()
        self.first = nn.Parameter(torch.empty(1, 1, width))
        self.places = nn.Parameter(torch.empty(1, 1 + patches, width))
        self.norm_before = nn.Identity() if spare else nn.LayerNorm(width, EPSILON)
        self.blocks = nn.Sequential(*(Block(width, heads, spare) for _ in range(layers)))
        self.norm_after = nn.LayerNorm(width, EPSILON)
        self.project = nn.Linear(width, output, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patch_norm(self.patch(x).flatten(2).transpose(1, 2))
        tokens = torch.cat([self.first.expand(len(x), -1, -1), tokens], dim=1) + self.places
        tokens = self.blocks(self.norm_before(tokens))
        return F.normalize(self.project(self.norm_after(tokens[:, 0])), dim=-1)


class ImageBind(nn.Module):
    """ImageBind's networks for vision and audio, without those for its other senses.

    `vision` takes frames (N, 3, FRAMES, SIDE, SIDE), `audio` spectrograms (N, 1, BANDS, STEPS). Both return embeddings
    (N, output).
    """

    def __init__(self, sizes: Mapping[str, Any]) -> None:
        super().__init__()
        vision, audio, output = sizes["vision"], sizes["audio"], sizes["output"]
        cube, square = (FRAMES, PATCH, PATCH), (SPOT, SPOT)
        pixels = nn.Conv3d(3, vision["width"], cube, cube, bias=False)
        bands = nn.Conv2d(1, audio["width"], square, STRIDE, bias=False)
        spots = ((BANDS - SPOT) // STRIDE + 1) * ((STEPS - SPOT) // STRIDE + 1)
        self.vision = Encoder(pixels, (SIDE // PATCH) ** 2, **vision, output=output, spare=False)
        self.audio = Encoder(bands, spots, **audio, output=output, spare=True)


def empty_network(sizes: Mapping[str, Any]) -> ImageBind:
    """Return the network without memory for its weights (on torch's meta device).

    The weights are loaded later from a file.
    """
    with torch.device("meta"):
        return ImageBind(sizes)
