"""Held-out measures of videos of shapes: distance to the nearest real clip, accuracy, and diversity.

Real clips are those that the world's renderer can make. No reward may use them, so these measures can check the
rewards. Accuracy is 1 if the nearest real clip shows the prompted shape, colour and direction, else 0.

Diversity is the mean distance between a video and the others of its prompt in what the prompt leaves open: place, speed
and size. Distances of pixels would count a wrong colour as variety.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from sage_grpo.core.protocols import Prompt
from sage_grpo.core.reward import Reward
from sage_grpo.core.scores import Scores
from sage_grpo.lab.clips import as_clips
from sage_grpo.lab.shapes.world import FRAMES, SIZE, as_asked, fit, parse_prompt
from sage_grpo.registry import reward
from sage_grpo.rewards.errors import RewardError
from sage_grpo.rewards.frames import groups


@reward("shapes-heldout")
class ShapesHeldOut(Reward):
    """A monitor that scores each video by its distance to the nearest rendered clip, its accuracy and its diversity.

    A video that is the only one of its prompt in a batch gets no score for diversity.
    """

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
