"""Functions that degrade the sound of a clip, each at a few strengths, so that a score of the sound should fall.

The frames are not changed. Each function takes a wave (channels, samples) with its sample rate and returns a wave of
the same length. Loudness is relative to the sound's own, so that the copy of a quiet clip sounds as bad as that of a
loud one. Randomness comes from the generator that is passed in.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Generator, Tensor

SoundDegradation = Callable[[Tensor, int, Generator], Tensor]


def gain(decibels: float) -> float:
    return float(10 ** (decibels / 20))


def muted(wave: Tensor, rate: int, random: Generator) -> Tensor:
    """Replace the sound by silence."""
    return torch.zeros_like(wave)


def faint(wave: Tensor, rate: int, random: Generator, decibels: float) -> Tensor:
    """Lower the loudness by `decibels`."""
    return wave * gain(-decibels)


def late(wave: Tensor, rate: int, random: Generator, seconds: float) -> Tensor:
    """Delay the sound by `seconds`: it begins with silence, and as much is lost at its end.

    If `seconds` is negative, the sound is early: its start is lost, and it ends with silence.
    """
    shift = round(seconds * rate)
    moved = wave.roll(shift, -1)
    hidden = moved[:, :shift] if shift >= 0 else moved[:, shift:]
    hidden.zero_()
    return moved


def clipped(wave: Tensor, rate: int, random: Generator, decibels: float) -> Tensor:
    """Clip the sound at `decibels` below its peak, then amplify it until its peak is as loud as before."""
    limit = wave.abs().max() * gain(-decibels)
    return wave.clamp(-limit, limit) * gain(decibels)


def hiss(wave: Tensor, rate: int, random: Generator, decibels: float) -> Tensor:
    """Add constant white noise, `decibels` below the mean loudness of the sound."""
    loudness = wave.square().mean().sqrt()
    noise = torch.randn(wave.shape, generator=random) * loudness * gain(-decibels)
    return (wave + noise).clamp(-1, 1)


SOUND_DEGRADATIONS: dict[str, SoundDegradation] = {
    "muted": muted,
    **{f"faint-{strength}dB": partial(faint, decibels=strength) for strength in (40, 20)},
    **{f"late-{strength}s": partial(late, seconds=strength) for strength in (0.5, 0.25, 0.1)},
    "early-0.25s": partial(late, seconds=-0.25),
    **{f"clipped-{strength}dB": partial(clipped, decibels=strength) for strength in (30, 12)},
    **{f"hiss-{strength}dB": partial(hiss, decibels=strength) for strength in (0, 20)},
}


def degrade_sound(name: str, wave: Tensor, rate: int, seed: int = 0) -> Tensor:
    """Return a copy of a wave (channels, samples), degraded by the function `name` of `SOUND_DEGRADATIONS`.

    `rate` is in samples per second. The wave itself is not changed, and the same seed gives the same copy.
    """
    if wave.dim() != 2 or not wave.is_floating_point() or not wave.numel():
        raise ValueError(f"a sound is floats (channels, samples), not {wave.dtype} {tuple(wave.shape)}")
    return SOUND_DEGRADATIONS[name](wave.float(), rate, torch.Generator().manual_seed(seed))
