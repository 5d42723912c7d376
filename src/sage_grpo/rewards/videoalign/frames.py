"""Conversion of a video to Qwen2-VL's inputs: choice of frames, size, and patches. Torchvision is not needed."""

import math
import re

import torch
from torch import Tensor
from torch.nn import functional as F

from sage_grpo.rewards.errors import RewardError

PATCH, MERGE, FRAMES_OF_PATCH = 14, 2, 2  # of Qwen2-VL: pixels, patches a side of a token, frames
CELL = PATCH * MERGE  # pixels a side of what becomes one token
LEAST_FRAMES, LEAST_PIXELS = 4, 128 * CELL**2
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # of CLIP


def without(special: re.Pattern[str], text: str) -> str:
    """Return a user's text without the names of special tokens, which the tokenizer would read as these tokens."""
    while (shorter := special.sub("", text)) != text:  # taking one out may put another together
        text = shorter
    return text


def frame_indices(total: int, fps: float, rate: float = 2.0, most: int = 768) -> Tensor:
    """Return the indices of frames spread evenly over a video: an even number, `rate` per second, at most `most`.

    Args:
        total: Frames of the video.
        fps: Frames per second of the video.
    """
    limit = min(most, total) // FRAMES_OF_PATCH * FRAMES_OF_PATCH
    if limit < FRAMES_OF_PATCH:
        raise RewardError(f"VideoAlign needs {FRAMES_OF_PATCH} frames, not {min(most, total)}; it judges motion")
    frame_count = min(max(total / fps * rate, LEAST_FRAMES), limit)
    return torch.linspace(0, total - 1, round(frame_count / FRAMES_OF_PATCH) * FRAMES_OF_PATCH).round().long()


def frame_size(height: int, width: int, most: int, least: int = LEAST_PIXELS) -> tuple[int, int]:
    """Return height and width in pixels for frames of nearly the same proportions, as multiples of `CELL`.

    Args:
        most: Largest area in pixels.
        least: Smallest area in pixels.
    """
    if max(height, width) > 200 * min(height, width):
        raise RewardError(f"frames of {height}×{width} are too narrow for VideoAlign: at most 200 to 1")
    rows, columns = (max(1, round(side / CELL)) for side in (height, width))
    if rows * columns * CELL**2 > most:
        shrink = math.sqrt(height * width / most)
        rows, columns = (max(1, math.floor(side / shrink / CELL)) for side in (height, width))
    elif rows * columns * CELL**2 < least:
        grow = math.sqrt(least / (height * width))
        rows, columns = (math.ceil(side * grow / CELL) for side in (height, width))
    return rows * CELL, columns * CELL


def resize(frames_FHWC: Tensor, size: tuple[int, int]) -> Tensor:
    """Return frames (F, H, W, 3) resized to `size`, as floats (F, 3, h, w) rounded to whole numbers from 0 to 255.

    Torchvision resizes 8-bit frames in the same way.
    """
    frames = frames_FHWC.permute(0, 3, 1, 2).float()
    return F.interpolate(frames, size, mode="bicubic", antialias=True).clamp(0, 255).round()


def patches(frames_FCHW: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pixels of frames (F, 3, H, W) from 0 to 255 for Qwen2-VL, a row per patch, and the patches' grid (3,).

    A patch spans two frames. The grid is the numbers of frame pairs, rows and columns of patches. The four patches of
    one token follow each other.
    """
    mean, std = (torch.tensor(x, device=frames_FCHW.device)[:, None, None] for x in (MEAN, STD))
    x = (frames_FCHW / 255 - mean) / std
    frames, channels, height, width = x.shape
    grid = (frames // FRAMES_OF_PATCH, height // PATCH, width // PATCH)
    x = x.view(grid[0], FRAMES_OF_PATCH, channels, grid[1] // MERGE, MERGE, PATCH, grid[2] // MERGE, MERGE, PATCH)
    x = x.permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return x.reshape(math.prod(grid), -1), torch.tensor(grid)
