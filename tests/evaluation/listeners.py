"""Scorers that write down what they are given: one that hears, one that hears and compares, one that does not."""

from typing import ClassVar

import torch

from sage_grpo.core.reward import Reward
from sage_grpo.core.scores import Scores


class Writes(Reward):
    given: ClassVar[list] = []

    def submit(self, videos, prompts):
        type(self).given.append((videos, [prompt.text for prompt in prompts]))
        there = torch.full((len(videos), 1), videos.sound is not None or not self.uses_audio)
        loud = videos.sound.abs().mean((1, 2)) if videos.sound is not None else torch.zeros(len(videos))
        return lambda: Scores(loud.double()[:, None], there)


class Ears(Writes):
    names, uses_audio, given = ("loud",), True, []


class ComparingEars(Writes):
    names, uses_audio, groupwise, given = ("louder",), True, True, []


class Eyes(Writes):
    names, given = ("seen",), []
