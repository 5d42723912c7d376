"""A detector of flaws in clips of shapes: clips that flicker, and clips that stop on their way and then jump.

It shares nothing with the rewards: it looks at single frames where they average over a clip, and its answer is yes or
no.
"""

from torch import Tensor

DIM = 0.75  # a clip flickers if a frame's shape has less than this of its usual brightness
STILL = 0.3  # and halts if a frame differs from the one before by less than this of the usual difference


def flickers(videos: Tensor) -> Tensor:
    """Return a mask (N,) of the videos with a frame that is much darker than the others.

    The brightness of a frame is that of its lit pixels, weighted by their light. `videos` are uint8 (N, F, H, W, 3).
    """
    light = videos.float().amax(4)
    bright = light.square().sum((2, 3)) / light.sum((2, 3)).clamp(min=1)
    return bright.amin(1) < DIM * bright.median(1).values


def halts(videos: Tensor) -> Tensor:
    """Return a mask (N,) of the videos with a frame that is almost the same as the one before.

    `videos` are uint8 (N, F, H, W, 3).
    """
    change = videos.float().diff(dim=1).abs().mean((2, 3, 4))
    return change.amin(1) < STILL * change.median(1).values


def flawed(videos: Tensor) -> Tensor:
    """Return a mask (N,) of the videos that flicker or halt.

    Examples:
        >>> import torch
        >>> still = torch.zeros(1, 8, 32, 32, 3, dtype=torch.uint8)
        >>> flawed(still)
        tensor([False])
    """
    return flickers(videos) | halts(videos)
