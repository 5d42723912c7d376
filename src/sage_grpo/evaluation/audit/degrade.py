"""Functions that degrade a clip, so that a good score should fall. A new one is a function under `@degradation`.

Each takes frames (F, H, W, 3), uint8, and returns as many frames of the same size. Lengths, such as that of a blur, are
relative to the shorter side, so that a copy looks as bad in 720p as in a thumbnail. Randomness comes from the generator
that is passed in.
"""

from collections.abc import Callable

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

Degradation = Callable[[Tensor, Generator], Tensor]

DEGRADATIONS: dict[str, Degradation] = {}


def degradation(function: Degradation) -> Degradation:
    """Register the function as a degradation under its own name, and return it unchanged."""
    DEGRADATIONS[function.__name__] = function
    return function


def degrade(name: str, frames: Tensor, seed: int = 0) -> Tensor:
    """Return a copy of the frames (F, H, W, 3), uint8, degraded by the function that is registered as `name`.

    The frames themselves are not changed, and the same seed gives the same copy.
    """
    if frames.dtype != torch.uint8 or frames.dim() != 4 or frames.shape[-1] != 3 or not frames.numel():
        raise ValueError(f"a clip is uint8 (frames, height, width, 3), not {frames.dtype} {tuple(frames.shape)}")
    return DEGRADATIONS[name](frames, torch.Generator().manual_seed(seed))


def each(frames: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply `change` to each frame as floats (H, W, 3) from 0 to 255, and return all as uint8, (F, H, W, 3).

    One frame is converted at a time, because a video in floats is large.
    """
    return torch.stack([change(frame.float()).round().clamp(0, 255).byte() for frame in frames])


def gaussian_blur(picture: Tensor, sigma: float) -> Tensor:
    """Return a picture (H, W, 3), float, blurred by a Gaussian with a standard deviation of `sigma` pixels.

    Pixels at the edge are repeated outwards.
    """
    reach = max(1, round(3 * sigma))
    weight = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / sigma) ** 2)
    weight = (weight / weight.sum())[None, None].expand(3, 1, -1)
    x = F.pad(picture.permute(2, 0, 1)[None], (reach,) * 4, mode="replicate")
    return F.conv2d(F.conv2d(x, weight[:, :, None], groups=3), weight[..., None], groups=3)[0].permute(1, 2, 0)


def other_shot(frames: Tensor) -> Tensor:
    """Return the clip upside down with its colour channels exchanged: as lively and as sharp, but another picture."""
    return frames.flip(1)[..., [1, 2, 0]]


def shorter_side(frames: Tensor) -> int:
    return min(frames.shape[1:3])


@degradation
def static(frames: Tensor, random: Generator) -> Tensor:
    """Replace every frame by the middle frame."""
    return frames[len(frames) // 2].expand(frames.shape).clone()


@degradation
def half(frames: Tensor, random: Generator) -> Tensor:
    """Halve the frame rate: show every second frame twice."""
    return frames[torch.arange(len(frames)) // 2 * 2]


@degradation
def shuffle(frames: Tensor, random: Generator) -> Tensor:
    """Put the frames in a random order."""
    return frames[torch.randperm(len(frames), generator=random)]


@degradation
def shake(frames: Tensor, random: Generator) -> Tensor:
    """Move each frame by up to 3 % of the shorter side, in a random direction."""
    reach = max(1, round(0.03 * shorter_side(frames)))
    x = F.pad(frames.permute(0, 3, 1, 2).float(), (reach,) * 4, mode="replicate").byte()
    height, width = frames.shape[1:3]
    shifts = torch.randint(0, 2 * reach + 1, (len(frames), 2), generator=random).tolist()
    moved = [x[t, :, down : down + height, right : right + width] for t, (down, right) in enumerate(shifts)]
    return torch.stack(moved).permute(0, 2, 3, 1).contiguous()


@degradation
def flicker(frames: Tensor, random: Generator) -> Tensor:
    """Make each frame brighter or darker at random, by up to 25 %."""
    gains = (0.75 + 0.5 * torch.rand(len(frames), generator=random)).tolist()
    left = iter(gains)
    return each(frames, lambda picture: picture * next(left))


@degradation
def cut(frames: Tensor, random: Generator) -> Tensor:
    """Replace the second half by another shot: the clip upside down with its colour channels exchanged."""
    middle = len(frames) // 2
    return torch.cat([frames[:middle], other_shot(frames)[middle:]])


@degradation
def crossfade(frames: Tensor, random: Generator) -> Tensor:
    """Fade from the clip to `other_shot` over the middle half of its length."""
    time = torch.linspace(0, 1, len(frames)) if len(frames) > 1 else torch.zeros(1)
    share = ((time - 0.25) * 2).clamp(0, 1).tolist()
    other = other_shot(frames)
    mixed = [a.float() * (1 - w) + b.float() * w for a, b, w in zip(frames, other, share, strict=True)]
    return torch.stack([picture.round().byte() for picture in mixed])


@degradation
def flat(frames: Tensor, random: Generator) -> Tensor:
    """Replace every pixel by the mean colour of the whole clip."""
    colour = frames.double().mean((0, 1, 2)).round().byte()
    return colour.expand(frames.shape).clone()


@degradation
def blur(frames: Tensor, random: Generator) -> Tensor:
    """Blur each frame with a Gaussian whose standard deviation is 2 % of the shorter side."""
    sigma = max(0.5, 0.02 * shorter_side(frames))
    return each(frames, lambda picture: gaussian_blur(picture, sigma))


@degradation
def noise(frames: Tensor, random: Generator) -> Tensor:
    """Add heavy noise, new in each frame, with a standard deviation of 40 of 255 grey levels."""
    return each(frames, lambda picture: picture + 40 * torch.randn(picture.shape, generator=random))


@degradation
def grain(frames: Tensor, random: Generator) -> Tensor:
    """Add mild noise, new in each frame, with a standard deviation of 6 of 255 grey levels."""
    return each(frames, lambda picture: picture + 6 * torch.randn(picture.shape, generator=random))


@degradation
def sharpen(frames: Tensor, random: Generator) -> Tensor:
    """Sharpen too much: add three times the detail that a Gaussian blur of one pixel removes."""
    return each(frames, lambda picture: picture + 3 * (picture - gaussian_blur(picture, 1.0)))


@degradation
def bright(frames: Tensor, random: Generator) -> Tensor:
    """Over-expose: double all grey levels, so that the highlights are lost."""
    return each(frames, lambda picture: 2 * picture)


@degradation
def vivid(frames: Tensor, random: Generator) -> Tensor:
    """Make colours too strong: move each to two and a half times its distance from grey."""
    return each(frames, lambda picture: (grey := picture.mean(-1, keepdim=True)) + 2.5 * (picture - grey))
