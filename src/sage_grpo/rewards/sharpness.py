"""Sharpness that noise does not raise, and that counts only up to the level of natural pictures.

Plain Laplacian variance is maximised by noise. Here each tile's noise is estimated by its median and taken away: noise
moves the median as much as the variance, an edge only the variance. Gamed by specks and by hard outlines, both up to
the natural level only.
"""

from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from sage_grpo.config import ConfigError
from sage_grpo.core.protocols import Prompt
from sage_grpo.registry import reward
from sage_grpo.rewards.frames import Unscorable, VideoScorer, frame_numbers

LUMINANCE = (0.299, 0.587, 0.114)
GAUSSIAN_MAD = 1.4826  # standard deviation of a Gaussian per median of its absolute value
TILE = 32
DOUBT = 1.5  # a tile is a small sample: what may still be noise is not paid


def edge_energy(frames: Tensor) -> Tensor:
    """Return the Laplacian's variance (F,) beyond that of the noise, for uint8 frames (F, H, W, 3)."""
    grey = (frames.float() * frames.new_tensor(LUMINANCE, dtype=torch.float32)).sum(-1)[:, None]
    kernel = grey.new_tensor([[0, 1, 0], [1, -4, 1], [0, 1, 0]])[None, None]
    laplacian = F.conv2d(grey, kernel)
    tile = min(TILE, *laplacian.shape[2:])
    tiles = F.unfold(laplacian, tile, stride=tile)  # (F, tile², tiles)
    noise = DOUBT * (GAUSSIAN_MAD * tiles.abs().median(1).values).square()
    return (tiles.square().mean(1) - noise).clamp(min=0).mean(1)


@reward("sharpness")
class SharpnessReward(VideoScorer):
    """Logarithm of the edges' energy, from 0 for a flat video to 1 at the natural level."""

    names = ("sharpness",)

    def __init__(self, *, natural: float = 300.0, frames: int = 8) -> None:
        if natural <= 0 or frames < 1:
            raise ConfigError(f"sharpness: natural={natural}, frames={frames} must both be above 0")
        self.natural, self.frames = natural, frames

    def frame_indices(self, frames: int) -> list[int]:
        return frame_numbers(frames, self.frames)

    def score_video(self, frames: Tensor, prompt: Prompt) -> list[float]:
        if min(frames.shape[1:3]) < 3:
            raise Unscorable("its sides are shorter than three pixels")
        energy = edge_energy(frames[self.frame_indices(len(frames))]).double()
        level = energy.clamp(max=self.natural).log1p().mean() / torch.tensor(self.natural).double().log1p()
        return [float(level)]

    @classmethod
    def tiny(cls) -> Self:
        return cls()
