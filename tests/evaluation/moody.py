"""A scorer that fails on some videos, until it is mended."""

import torch

from sage_grpo.core.reward import Reward
from sage_grpo.core.scores import Scores


class Moody(Reward):
    names = ("mood", "steady")
    mended = False
    calls = 0

    def score(self, clips, prompts):
        Moody.calls += 1
        if prompts[0].text == "a red circle moving right" and not self.mended:
            raise OSError("the server is away")
        values = clips.double().flatten(1).mean(1)[:, None].repeat(1, 2)
        valid = torch.ones_like(values, dtype=torch.bool)
        valid[:, 0] = prompts[0].text != "a red circle moving up" or self.mended
        return Scores(values, valid)
