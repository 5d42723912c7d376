"""A plain function as a reward: which columns and which sound it gets, by the names of its parameters."""

from functools import partial

import pytest
import torch

from sage_grpo.core.protocols import Prompt, Videos
from sage_grpo.rewards.function import FunctionReward

FRAMES = torch.zeros(2, 1, 4, 4, 3, dtype=torch.uint8)
PROMPTS = [Prompt("a", columns={"target": 1, "videos": 7, "other": 3}), Prompt("b", columns={"target": 2, "videos": 8})]


def takes_target(videos, prompts, target):
    return target


def takes_all(videos, prompts, **columns):
    assert set(columns) == {"target"}  # not `videos`, which is given already, nor what one prompt lacks
    return columns["target"]


class Called:
    def __call__(self, videos, prompts, target):
        return target


class Owner:
    def method(self, videos, prompts, *, target):
        return target


@pytest.mark.parametrize(
    "function",
    [takes_target, takes_all, partial(takes_target), Called(), Owner().method],
    ids=["function", "all", "partial", "object", "method"],
)
def test_a_column_arrives_by_name(function):
    scores = FunctionReward(function, "x").submit(Videos(FRAMES), PROMPTS)()
    assert scores.values[:, 0].tolist() == [1, 2]


def test_a_function_of_c_gets_videos_and_prompts():
    assert FunctionReward(lambda videos, prompts: map(len, prompts)).score(FRAMES, PROMPTS).values.sum() == 2
    assert FunctionReward(max, "max")._takes == set()


def test_sound_reaches_what_asks_for_it_and_masks_videos_without():
    loud = FunctionReward(partial(lambda videos, prompts, sound, scale: [scale * s.max() for s in sound], scale=2))
    assert loud.uses_audio
    heard = loud.submit(Videos(FRAMES, 8, torch.ones(2, 1, 10), 16_000), PROMPTS)()
    assert heard.values[:, 0].tolist() == [2, 2]
    assert not loud.submit(Videos(FRAMES), PROMPTS)().valid.any()
