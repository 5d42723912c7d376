"""Conversions of the laboratory's clips, tensors (N, 3, F, H, W) in [-1, 1]: to uint8 frames, to patches, and back."""

from collections.abc import Sequence

import torch
from torch import Tensor


def as_frames(clips: Tensor) -> Tensor:
    """Return clips (N, 3, F, H, W) in [-1, 1] as the frames of videos, (N, F, H, W, 3), uint8."""
    return ((clips + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 4, 1).contiguous()


def as_clips(videos: Tensor) -> Tensor:
    """Return the frames of videos (N, F, H, W, 3), uint8, as clips (N, 3, F, H, W) in [-1, 1] on the host."""
    return videos.cpu().float().permute(0, 4, 1, 2, 3) / 127.5 - 1


def grid_of(clip: Sequence[int], patch: Sequence[int]) -> tuple[int, ...]:
    """Return the number of patches in a clip along frames, rows and columns."""
    if any(side % part for side, part in zip(clip, patch, strict=True)):
        raise ValueError(f"a clip of {tuple(clip)} does not divide into patches of {tuple(patch)}")
    return tuple(side // part for side, part in zip(clip, patch, strict=True))


def cut(x: Tensor, patch: Sequence[int]) -> Tensor:
    """Cut a tensor (B, C, F, H, W) into patches, one per row: (B, patches, values).

    `patch` is the size of a patch: frames, rows and columns.
    """
    (b, c, *clip), (pt, ph, pw) = x.shape, patch
    t, h, w = grid_of(clip, patch)
    return x.view(b, c, t, pt, h, ph, w, pw).permute(0, 2, 4, 6, 1, 3, 5, 7).flatten(4).flatten(1, 3)


def join(rows: Tensor, clip: Sequence[int], patch: Sequence[int]) -> Tensor:
    """Join patches (B, patches, values), as `cut` returns them, to a tensor (B, C, F, H, W).

    `clip` and `patch` are the sizes of the joined clip and of a patch: frames, rows and columns.
    """
    t, h, w = grid_of(clip, patch)
    pt, ph, pw = patch
    parts = rows.view(len(rows), t, h, w, -1, pt, ph, pw).permute(0, 4, 1, 5, 2, 6, 3, 7)
    return parts.flatten(2, 3).flatten(3, 4).flatten(4, 5)
