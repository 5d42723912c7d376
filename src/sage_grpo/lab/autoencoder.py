"""An autoencoder from clips to a few numbers and back, as in large video models. The generator works on its latents.

A patch of many pixels becomes a handful of channels, so a generator of few tokens is cheap, and its clips are as sharp
as the decoder. It is trained once, before the generator, and never again.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sage_grpo.lab.blocks import Block
from sage_grpo.lab.clips import cut, grid_of, join


class _Tower(nn.Module):
    """A transformer over the patches of a clip: rows (B, rows, inputs) become rows (B, rows, outputs)."""

    def __init__(self, rows: int, inputs: int, outputs: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.into = nn.Linear(inputs, width)
        self.places = nn.Parameter(torch.randn(rows, width) / width**0.5)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.out = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, outputs)
        )

    def forward(self, rows: Tensor) -> Tensor:
        stream = self.into(rows) + self.places
        still = stream.new_zeros(len(stream), 6, stream.shape[2])  # nothing modulates these blocks
        for block in self.blocks:
            stream = block(stream, still)
        out: Tensor = self.out(stream)
        return out


class Autoencoder(nn.Module):
    """An autoencoder of clips (B, 3, F, H, W) in [-1, 1].

    `clip` and `patch` are frames, rows and columns of pixels; latents are (channels, frames, rows, columns).
    """

    def __init__(
        self,
        clip: Sequence[int],
        patch: Sequence[int],
        channels: int = 8,
        width: int = 128,
        depth: int = 2,
        heads: int = 4,
    ) -> None:
        super().__init__()
        self.config = {
            "clip": list(clip),
            "patch": list(patch),
            "channels": channels,
            "width": width,
            "depth": depth,
            "heads": heads,
        }
        self.clip, self.patch, self.grid = tuple(clip), tuple(patch), grid_of(clip, patch)
        rows = math.prod(self.grid)
        pixels = 3 * math.prod(self.patch)
        self.encoder = _Tower(rows, pixels, channels, width, depth, heads)
        self.decoder = _Tower(rows, channels, pixels, width, depth, heads)
        self.register_buffer("mean", torch.zeros(channels, 1, 1, 1))
        self.register_buffer("deviation", torch.ones(channels, 1, 1, 1))
        self.mean: Tensor
        self.deviation: Tensor

    @property
    def latent_shape(self) -> tuple[int, ...]:
        return (len(self.mean), *self.grid)

    def encode(self, clips: Tensor) -> Tensor:
        """Return latents (B, channels, …) of clips (B, 3, F, H, W), with mean 0 and deviation 1 over the world."""
        raw = join(self.encoder(cut(clips, self.patch)), self.grid, (1, 1, 1))
        return (raw - self.mean) / self.deviation

    def decode(self, latents: Tensor) -> Tensor:
        """Return the clips (B, 3, F, H, W) in [-1, 1] of latents (B, channels, …)."""
        return 2 * torch.sigmoid(self.logits(latents)) - 1

    def logits(self, latents: Tensor) -> Tensor:
        """Return logits of the light of every pixel, (B, 3, F, H, W).

        Trained on them, the decoder makes sharper edges.
        """
        rows = cut(latents * self.deviation + self.mean, (1, 1, 1))
        return join(self.decoder(rows), self.clip, self.patch)

    @torch.no_grad()
    def standardize(self, clips: Tensor) -> None:
        """Set `mean` and `deviation` so that latents of these clips have mean 0 and deviation 1 in every channel."""
        raw = self.encode(clips) * self.deviation + self.mean
        axes = (0, 2, 3, 4)
        self.mean.copy_(raw.mean(axes).view_as(self.mean))
        self.deviation.copy_(raw.std(axes).view_as(self.deviation))
