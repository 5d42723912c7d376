"""Helpers of scorers of sound: a video with its sound, and a base class that masks videos without sound."""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from scipy.signal import resample_poly
from torch import Tensor

from sage_grpo.core.protocols import Prompt, Videos
from sage_grpo.core.scores import Scores
from sage_grpo.rewards.frames import Unscorable, VideoScorer


@dataclass(frozen=True)
class Clip:
    """One video with its sound."""

    frames: Tensor
    """uint8 (F, H, W, 3)."""
    frame_rate: float
    """Frames per second."""
    wave: Tensor
    """(channels, samples) from -1 to 1."""
    sample_rate: int
    """Samples of sound per second."""

    def loudness(self, times: Tensor, width: float) -> Tensor:
        """Return the root mean square (T,) of the sound in a window around each of `times` (T,), in seconds.

        A window is `width` seconds long. Without any samples in the window, the result is 0.
        """
        power = self.wave.double().square().mean(0)
        sums = torch.cat([power.new_zeros(1), power.cumsum(0)])
        edges = torch.stack([times - width / 2, times + width / 2]) * self.sample_rate
        first, last = edges.round().long().clamp(0, len(power))
        mean = (sums[last] - sums[first]).clamp_min(0) / (last - first).clamp_min(1)
        return torch.sqrt(mean)

    def mono(self, sample_rate: int) -> Tensor:
        """Return the mean (samples,) of the sound's channels, resampled to `sample_rate` samples per second.

        Tones too high for that rate are filtered out, so that they do not come back as lower ones.
        """
        wave = self.wave.double().mean(0)
        if sample_rate == self.sample_rate:
            return wave
        shared = math.gcd(sample_rate, self.sample_rate)
        return torch.from_numpy(resample_poly(wave.numpy(), sample_rate // shared, self.sample_rate // shared))


def window_starts(total: int, length: int, count: int) -> list[int]:
    """Return the first sample of each of `count` windows, spread evenly over `total` samples from end to end.

    Args:
        length: Samples of one window.
    """
    room = max(total - length, 0)
    return [room * i // max(count - 1, 1) for i in range(count)]


class SoundScorer(VideoScorer):
    """A reward that scores one video with its sound at a time; a subclass says how in `score_clip`."""

    uses_audio = True

    @abstractmethod
    def score_clip(self, clip: Clip, prompt: Prompt) -> Sequence[float | None]:
        """Return the scores of one video with sound, one for each entry of `names`.

        A score is None if this video has no such score.
        """

    def score_video(self, frames: Tensor, prompt: Prompt) -> Sequence[float | None]:
        raise Unscorable("it has no sound")

    def submit(self, videos: Videos, prompts: Sequence[Prompt]) -> Callable[[], Scores]:
        return partial(self._listen, videos, prompts)

    def _listen(self, videos: Videos, prompts: Sequence[Prompt]) -> Scores:
        sound, rate, speed = videos.sound, videos.sample_rate, videos.frame_rate
        if sound is None or not rate or not speed:
            return self.score(videos.frames, prompts)

        def alone(i: int) -> Sequence[float | None]:
            if not videos.frames[i].numel() or not sound[i].numel():
                raise Unscorable("it has no pixels or no sound")
            return self.score_clip(Clip(videos.frames[i].cpu(), speed, sound[i].float().cpu(), rate), prompts[i])

        return self.one_by_one(alone, prompts)
