"""A reward for shapes that sound as high as they are.

What is heard is the strongest frequency of each frame, what is seen is the centre of its light.
"""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from sage_grpo.core.protocols import Prompt
from sage_grpo.lab.tones.world import MIDDLE, OCTAVES
from sage_grpo.registry import reward
from sage_grpo.rewards.sound import Clip, SoundScorer

TOLERANCE = 0.25  # octaves
BINS = 1 << 14  # of the spectrum: half a Hertz at 8 kHz


def heard(wave: Tensor, sample_rate: int, frames: int) -> Tensor:
    """Return the pitch of each frame, (frames,), in octaves above the middle, by the peak of its spectrum.

    `wave` has one channel, (samples,).
    """
    spans = wave[: len(wave) // frames * frames].view(frames, -1)
    spectrum = torch.fft.rfft(spans * torch.hann_window(spans.shape[1]), BINS).abs()
    peak = spectrum[:, 1:].argmax(1) + 1
    return torch.log2(peak * sample_rate / BINS / MIDDLE)


def seen(frames: Tensor) -> Tensor:
    """Return the pitch (F,) that each frame asks for by the height of its light, from frames (F, H, W, 3), uint8."""
    light = (frames.float().amax(3) / 255).square().sum(2)
    rows = light.shape[1]
    below = (torch.arange(rows) + 0.5) / rows * 2 - 1  # from the middle of the picture
    return -OCTAVES * (light * below).sum(1) / light.sum(1).clamp_min(1e-3)


@reward("tones")
class TonesReward(SoundScorer):
    """A score of 1 where every frame sounds as high as it looks. It falls with the distance of the two."""

    names: tuple[str, ...] = ("pitch",)
    laboratory = True  # other clips have no such score

    def score_clip(self, clip: Clip, prompt: Prompt) -> Sequence[float | None]:
        gap = heard(clip.wave.mean(0), clip.sample_rate, len(clip.frames)) - seen(clip.frames)
        return [float((-gap.abs().mean() / TOLERANCE).exp())]

    @classmethod
    def tiny(cls) -> Self:
        return cls()
