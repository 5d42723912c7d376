"""Ways to degrade a sound, each at a few strengths: what a score that hears should fall on. The pictures stay.

Each takes a wave (channels, samples) with its rate and gives one as long. Loudness is relative to the sound's own, so
that a copy sounds as bad of a quiet clip as of a loud one. Chance comes from the generator that is handed in.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Generator, Tensor

SoundDegradation = Callable[[Tensor, int, Generator], Tensor]


def gain(decibels: float) -> float:
    return float(10 ** (decibels / 20))


def muted(wave: Tensor, rate: int, random: Generator) -> Tensor:
    """Nothing is heard."""
    return torch.zeros_like(wave)


def faint(wave: Tensor, rate: int, random: Generator, decibels: float) -> Tensor:
    """The same, so much less loud."""
    return wave * gain(-decibels)


def late(wave: Tensor, rate: int, random: Generator, seconds: float) -> Tensor:
    """Silence first; as much is lost at the end. Early below zero: silence is last."""
    shift = round(seconds * rate)
    moved = wave.roll(shift, -1)
    hidden = moved[:, :shift] if shift >= 0 else moved[:, shift:]
    hidden.zero_()
    return moved


def clipped(wave: Tensor, rate: int, random: Generator, decibels: float) -> Tensor:
    """So much too loud for its range: cut off above, and as loud at its peak as before."""
    limit = wave.abs().max() * gain(-decibels)
    return wave.clamp(-limit, limit) * gain(decibels)


def hiss(wave: Tensor, rate: int, random: Generator, decibels: float) -> Tensor:
    """White noise all the time, so far below the sound's mean loudness."""
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
    """A degraded copy; the wave stays as it is, and the same seed gives the same copy."""
    if wave.dim() != 2 or not wave.is_floating_point() or not wave.numel():
        raise ValueError(f"a sound is floats (channels, samples), not {wave.dtype} {tuple(wave.shape)}")
    return SOUND_DEGRADATIONS[name](wave.float(), rate, torch.Generator().manual_seed(seed))
