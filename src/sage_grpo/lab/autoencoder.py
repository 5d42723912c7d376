"""The laboratory's autoencoder: it turns clips into small latents, on which the generator works, and back.

Each patch of many pixels becomes one token of a few channels, so the generator has few tokens and is cheap. The
generator's clips are as sharp as the decoder makes them. The autoencoder is trained once, before the generator, and
never again.
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

    `clip` and `patch` are the sizes of a clip and of a patch in pixels: frames, rows and columns. A latent has the
    shape (channels, frames, rows, columns), with one place per patch.
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
        """Return the latents (B, channels, frames, rows, columns) of clips (B, 3, F, H, W) in [-1, 1].

        After `standardize`, each channel has mean 0 and standard deviation 1 over the clips of the world.
        """
        raw = join(self.encoder(cut(clips, self.patch)), self.grid, (1, 1, 1))
        return (raw - self.mean) / self.deviation

    def decode(self, latents: Tensor) -> Tensor:
        """Return the clips (B, 3, F, H, W) in [-1, 1] of latents (B, channels, frames, rows, columns)."""
        return 2 * torch.sigmoid(self.logits(latents)) - 1

    def logits(self, latents: Tensor) -> Tensor:
        """Return the logits of the brightness of every pixel and colour, (B, 3, F, H, W), of latents (B, channels, …).

        Pre-training compares these logits with the clips, because the decoder then makes sharper edges.
        """
        rows = cut(latents * self.deviation + self.mean, (1, 1, 1))
        return join(self.decoder(rows), self.clip, self.patch)

    @torch.no_grad()
    def standardize(self, clips: Tensor) -> None:
        """Set `mean` and `deviation` so that these clips' latents have mean 0 and standard deviation 1 per channel."""
        raw = self.encode(clips) * self.deviation + self.mean
        axes = (0, 2, 3, 4)
        self.mean.copy_(raw.mean(axes).view_as(self.mean))
        self.deviation.copy_(raw.std(axes).view_as(self.deviation))
