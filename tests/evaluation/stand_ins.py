"""Scorers that several tests share."""

import torch

from sage_grpo.core.reward import Reward
from sage_grpo.core.scores import Scores


class Rank(Reward):
    """Compares the videos of one prompt by their light."""

    names, groupwise = ("rank",), True

    def score(self, videos, prompts):
        assert len({prompt.text for prompt in prompts}) == 1
        order = videos.double().mean((1, 2, 3, 4)).argsort().argsort().double()[:, None]
        return Scores(order, torch.ones_like(order, dtype=torch.bool))
