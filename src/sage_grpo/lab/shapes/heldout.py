"""Held-out measures to check the laboratory's rewards: nearness to the real clips, the prompt met, and diversity.

They use the known world, which no reward may see: the nearest real clip to each video, how far it is, and whether it
is what the prompt asked for. Diversity is the mean distance to the other videos of the prompt in what it leaves open:
place, speed and size. Distances of pixels would count a wrong colour as variety.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from sage_grpo.core.protocols import Prompt, Reward
from sage_grpo.core.scores import Scores
from sage_grpo.lab.clips import as_clips
from sage_grpo.lab.shapes.world import FRAMES, SIZE, as_asked, fit, parse_prompt
from sage_grpo.registry import reward
from sage_grpo.rewards.errors import RewardError
from sage_grpo.rewards.frames import groups


@reward("shapes-heldout")
class ShapesHeldOut(Reward):
    """The held-out measures of a clip: distance, accuracy and diversity. A video alone has no diversity."""

    names = ("distance", "accuracy", "diversity")
    lower_is_better = ("distance",)
    groupwise = True
    laboratory = True  # other clips have no such scores
    not_trainable_because = "it is what the laboratory's rewards are held against"

    def score(self, videos: Tensor, prompts: Sequence[Prompt]) -> Scores:
        if videos.dtype != torch.uint8 or tuple(videos.shape[1:]) != (FRAMES, SIZE, SIZE, 3):
            raise RewardError(
                f"shapes-heldout measures uint8 clips of {FRAMES} frames of {SIZE}×{SIZE}; given {videos.dtype} "
                f"{tuple(videos.shape[1:])}: it is for the model `shapes` alone"
            )
        fitted, texts = fit(as_clips(videos)), [prompt.text for prompt in prompts]
        expected = torch.tensor([parse_prompt(text) for text in texts])
        clips = as_asked(fitted.scene, texts)
        got = torch.stack([fitted.scene.shape, fitted.scene.colour, fitted.scene.direction], 1)
        diversity = torch.full((len(videos),), math.nan, dtype=torch.float64)
        for members in groups(prompts):
            if len(members) > 1:
                flat = clips[members].double().flatten(1)
                apart = torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist") / flat.shape[1] ** 0.5
                diversity[members] = apart.sum(1) / (len(members) - 1)
        columns = [fitted.distance.double(), (got == expected).all(1).double(), diversity]
        return Scores.of(torch.stack(columns, 1))
