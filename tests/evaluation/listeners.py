"""Scorers that write down what they are given: one that hears, one that hears and compares, one that does not."""

from typing import ClassVar

import torch

from sage_grpo.core.protocols import Reward
from sage_grpo.core.scores import Scores


class Writes(Reward):
    given: ClassVar[list] = []

    def begin(self, videos, prompts):
        type(self).given.append((videos, [prompt.text for prompt in prompts]))
        there = torch.full((len(videos), 1), videos.sound is not None or not self.hears)
        loud = videos.sound.abs().mean((1, 2)) if videos.sound is not None else torch.zeros(len(videos))
        return lambda: Scores(loud.double()[:, None], there)


class Ears(Writes):
    names, hears, given = ("loud",), True, []


class ComparingEars(Writes):
    names, hears, groupwise, given = ("louder",), True, True, []


class Eyes(Writes):
    names, given = ("seen",), []
