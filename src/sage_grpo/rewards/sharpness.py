"""Sharpness that noise does not raise, and that counts only up to the level of natural pictures.

The plain variance of the Laplacian is highest for noise. Here the noise of each tile is estimated by the tile's median
and subtracted: noise raises the median as much as the variance, an edge raises only the variance. The score is gamed by
specks and by hard outlines, both up to the natural level only.
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
    """Return for each uint8 frame (F, H, W, 3) the variance of its Laplacian minus that of its noise, as (F,)."""
    grey = (frames.float() * frames.new_tensor(LUMINANCE, dtype=torch.float32)).sum(-1)[:, None]
    kernel = grey.new_tensor([[0, 1, 0], [1, -4, 1], [0, 1, 0]])[None, None]
    laplacian = F.conv2d(grey, kernel)
    tile = min(TILE, *laplacian.shape[2:])
    tiles = F.unfold(laplacian, tile, stride=tile)  # (F, tile², tiles)
    noise = DOUBT * (GAUSSIAN_MAD * tiles.abs().median(1).values).square()
    return (tiles.square().mean(1) - noise).clamp(min=0).mean(1)


@reward("sharpness")
class SharpnessReward(VideoScorer):
    """Sharpness on a logarithmic scale, from 0 for a flat video to 1 at the level of natural pictures.

    Args:
        natural: The `edge_energy` of natural pictures.
        frames: How many frames of a video are scored.
    """

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
