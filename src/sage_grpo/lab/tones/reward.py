"""The reward of the world of tones: each frame should sound as high as its shape is in the picture.

The pitch that is heard is the strongest frequency of each frame's sound. The pitch that is seen follows from the centre
of each frame's light.
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
    """Return the pitch of the sound during each frame, (frames,), in octaves above `MIDDLE`.

    The pitch is the strongest frequency of the frame's part of `wave`, which has one channel, (samples,).
    """
    spans = wave[: len(wave) // frames * frames].view(frames, -1)
    spectrum = torch.fft.rfft(spans * torch.hann_window(spans.shape[1]), BINS).abs()
    peak = spectrum[:, 1:].argmax(1) + 1
    return torch.log2(peak * sample_rate / BINS / MIDDLE)


def seen(frames: Tensor) -> Tensor:
    """Return the pitch (F,), in octaves above `MIDDLE`, that is right for each frame (F, H, W, 3), uint8.

    The higher the centre of the frame's light, the higher this pitch.
    """
    light = (frames.float().amax(3) / 255).square().sum(2)
    rows = light.shape[1]
    below = (torch.arange(rows) + 0.5) / rows * 2 - 1  # from the middle of the picture
    return -OCTAVES * (light * below).sum(1) / light.sum(1).clamp_min(1e-3)


@reward("tones")
class TonesReward(SoundScorer):
    """A reward from 0 to 1 for how well sound and picture fit. It is 1 if the pitch is right in every frame.

    The score falls exponentially with the mean gap in octaves.
    """

    names: tuple[str, ...] = ("pitch",)
    laboratory = True  # other clips have no such score

    def score_clip(self, clip: Clip, prompt: Prompt) -> Sequence[float | None]:
        gap = heard(clip.wave.mean(0), clip.sample_rate, len(clip.frames)) - seen(clip.frames)
        return [float((-gap.abs().mean() / TOLERANCE).exp())]

    @classmethod
    def tiny(cls) -> Self:
        return cls()
