"""Ways to degrade a clip: what a sound score should fall on. A new one is one function under `@degradation`.

Each takes uint8 frames (F, H, W, 3) and gives as many of the same size. Sizes are relative to the shorter side, so that
a copy looks as bad in 720p as in a thumbnail. Chance comes from the generator that is handed in.
"""

from collections.abc import Callable

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

Degradation = Callable[[Tensor, Generator], Tensor]

DEGRADATIONS: dict[str, Degradation] = {}


def degradation(function: Degradation) -> Degradation:
    """Enter it in the registry, by its name."""
    DEGRADATIONS[function.__name__] = function
    return function


def degrade(name: str, frames: Tensor, seed: int = 0) -> Tensor:
    """A degraded copy; the frames stay as they are, and the same seed gives the same copy."""
    if frames.dtype != torch.uint8 or frames.dim() != 4 or frames.shape[-1] != 3 or not frames.numel():
        raise ValueError(f"a clip is uint8 (frames, height, width, 3), not {frames.dtype} {tuple(frames.shape)}")
    return DEGRADATIONS[name](frames, torch.Generator().manual_seed(seed))


def each(frames: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """`change` of every frame in floats, one at a time: a video in floats is large."""
    return torch.stack([change(frame.float()).round().clamp(0, 255).byte() for frame in frames])


def gaussian_blur(picture: Tensor, sigma: float) -> Tensor:
    """Blur a picture (H, W, 3); edges are repeated."""
    reach = max(1, round(3 * sigma))
    weight = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / sigma) ** 2)
    weight = (weight / weight.sum())[None, None].expand(3, 1, -1)
    x = F.pad(picture.permute(2, 0, 1)[None], (reach,) * 4, mode="replicate")
    return F.conv2d(F.conv2d(x, weight[:, :, None], groups=3), weight[..., None], groups=3)[0].permute(1, 2, 0)


def other_shot(frames: Tensor) -> Tensor:
    """The same clip upside down with its colours exchanged: as lively and as sharp, but another picture."""
    return frames.flip(1)[..., [1, 2, 0]]


def shorter_side(frames: Tensor) -> int:
    return min(frames.shape[1:3])


@degradation
def static(frames: Tensor, random: Generator) -> Tensor:
    """The middle frame, all the time."""
    return frames[len(frames) // 2].expand(frames.shape).clone()


@degradation
def half(frames: Tensor, random: Generator) -> Tensor:
    """Half the frame rate: every second frame twice."""
    return frames[torch.arange(len(frames)) // 2 * 2]


@degradation
def shuffle(frames: Tensor, random: Generator) -> Tensor:
    """The same frames in a random order."""
    return frames[torch.randperm(len(frames), generator=random)]


@degradation
def shake(frames: Tensor, random: Generator) -> Tensor:
    """Each frame moved by up to 3 % of the shorter side, in a random direction."""
    reach = max(1, round(0.03 * shorter_side(frames)))
    x = F.pad(frames.permute(0, 3, 1, 2).float(), (reach,) * 4, mode="replicate").byte()
    height, width = frames.shape[1:3]
    shifts = torch.randint(0, 2 * reach + 1, (len(frames), 2), generator=random).tolist()
    moved = [x[t, :, down : down + height, right : right + width] for t, (down, right) in enumerate(shifts)]
    return torch.stack(moved).permute(0, 2, 3, 1).contiguous()


@degradation
def flicker(frames: Tensor, random: Generator) -> Tensor:
    """Each frame brighter or darker by up to 25 %."""
    gains = (0.75 + 0.5 * torch.rand(len(frames), generator=random)).tolist()
    left = iter(gains)
    return each(frames, lambda picture: picture * next(left))


@degradation
def cut(frames: Tensor, random: Generator) -> Tensor:
    """Another shot from the middle on."""
    middle = len(frames) // 2
    return torch.cat([frames[:middle], other_shot(frames)[middle:]])


@degradation
def crossfade(frames: Tensor, random: Generator) -> Tensor:
    """One shot fades into another over the middle half."""
    time = torch.linspace(0, 1, len(frames)) if len(frames) > 1 else torch.zeros(1)
    share = ((time - 0.25) * 2).clamp(0, 1).tolist()
    other = other_shot(frames)
    mixed = [a.float() * (1 - w) + b.float() * w for a, b, w in zip(frames, other, share, strict=True)]
    return torch.stack([picture.round().byte() for picture in mixed])


@degradation
def flat(frames: Tensor, random: Generator) -> Tensor:
    """Nothing but the mean colour."""
    colour = frames.double().mean((0, 1, 2)).round().byte()
    return colour.expand(frames.shape).clone()


@degradation
def blur(frames: Tensor, random: Generator) -> Tensor:
    """A Gaussian blur of 2 % of the shorter side."""
    sigma = max(0.5, 0.02 * shorter_side(frames))
    return each(frames, lambda picture: gaussian_blur(picture, sigma))


@degradation
def noise(frames: Tensor, random: Generator) -> Tensor:
    """Heavy noise, new in each frame: 40 of 255 grey levels."""
    return each(frames, lambda picture: picture + 40 * torch.randn(picture.shape, generator=random))


@degradation
def grain(frames: Tensor, random: Generator) -> Tensor:
    """Mild noise, new in each frame: 6 of 255 grey levels."""
    return each(frames, lambda picture: picture + 6 * torch.randn(picture.shape, generator=random))


@degradation
def sharpen(frames: Tensor, random: Generator) -> Tensor:
    """Sharpened too much: three times what a blur of one pixel takes away is added."""
    return each(frames, lambda picture: picture + 3 * (picture - gaussian_blur(picture, 1.0)))


@degradation
def bright(frames: Tensor, random: Generator) -> Tensor:
    """Over-exposed: twice the light, the highlights lost."""
    return each(frames, lambda picture: 2 * picture)


@degradation
def vivid(frames: Tensor, random: Generator) -> Tensor:
    """Colours two and a half times as far from grey."""
    return each(frames, lambda picture: (grey := picture.mean(-1, keepdim=True)) + 2.5 * (picture - grey))
