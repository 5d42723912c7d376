"""Does a sound begin when something begins to move? Compares onsets of motion and sound, without a trained network.

The score is gamed by one flash with one bang, and by noise and flicker that both begin with the video. It ignores what
is seen and heard: combine it with a score of pictures and one of sound.
"""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from sage_grpo.core.protocols import Prompt
from sage_grpo.registry import reward
from sage_grpo.rewards.frames import Unscorable, shrunk
from sage_grpo.rewards.sound import Clip, SoundScorer

SIDE = 64  # pixels of the shorter side on which motion is measured
STILL = 0.25  # grey levels of mean change between two frames, below which nothing moves
SILENT = 1e-3  # of full scale: 60 decibels below the loudest
TOLERANCE = (0.25, 0.5, 0.25)  # an onset counts half if it comes a frame early or late


def onsets(curve: Tensor) -> Tensor:
    """Return how far each value of a curve (T,) rises above the value before, smoothed over neighbours, as (T,).

    A fall counts as 0. The value before the first is taken to be 0.
    """
    rises = F.pad(curve, (1, 0)).diff().clamp_min(0)
    return F.conv1d(rises[None, None], curve.new_tensor(TOLERANCE)[None, None], padding=1)[0, 0]


@reward("synchrony")
class SynchronyReward(SoundScorer):
    """Cosine between the onsets of motion and those of sound, from 0 to 1; 0 for a video that is still or silent."""

    names: tuple[str, ...] = ("synchrony",)

    def score_clip(self, clip: Clip, prompt: Prompt) -> Sequence[float | None]:
        if len(clip.frames) < 3:
            raise Unscorable("synchrony needs three frames")
        pictures = shrunk(clip.frames, SIDE).double()
        motion = (pictures.diff(dim=0).abs().mean((1, 2, 3)) - STILL).clamp_min(0)
        times = torch.arange(1, len(pictures), dtype=torch.float64) / clip.frame_rate
        loudness = clip.loudness(times, 1 / clip.frame_rate)
        heard = loudness * (loudness.max() >= SILENT)  # nothing is taken off, or a faint sound would be a clearer one
        return [float(F.cosine_similarity(onsets(motion), onsets(heard), dim=0))]

    @classmethod
    def tiny(cls) -> Self:
        return cls()
