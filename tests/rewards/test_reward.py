"""What anyone may ask of a reward: defaults, wrappers that pass all of it on, and one rule of what a failure is."""

import math

import pytest
import torch

from sage_grpo.config import ConfigError
from sage_grpo.core.protocols import Videos
from sage_grpo.core.reward import Reward
from sage_grpo.core.scores import Scores
from sage_grpo.rewards.function import CompositeReward
from sage_grpo.training.build import as_reward

LEFT_TO_THE_PARTS = {"presets"}  # they name scores of one reward, and are asked for before rewards are joined


def test_a_wrapper_passes_everything_on():
    """Whatever a reward may be asked, several of them answer for their parts: a member that is new must be added."""

    class Part(Reward):
        names, lower_is_better, reasons = ("part",), ("part",), {1: "it is dark"}
        groupwise, uses_audio, laboratory, not_trainable_because, device_bytes = True, True, True, "it is held out", 7
        follows_videos_device = True

        def score(self, videos, prompts):
            return Scores.of(torch.arange(2.0)[:, None])

        def frame_indices(self, frames):
            return [frames - 1]

    members = {name for name in vars(Reward) if not name.startswith("_")}
    whole = CompositeReward([Part()])
    own = vars(CompositeReward).keys() | vars(whole).keys()
    assert members - own == LEFT_TO_THE_PARTS
    for name in members - LEFT_TO_THE_PARTS - {"score", "submit", "wait_seconds", "frame_indices"}:
        assert getattr(whole, name) == getattr(Part(), name) != getattr(Reward, name), name
    assert (
        whole.submit(Videos(None), None)().values.tolist() == whole.score(None, None).values.tolist() == [[0.0], [1.0]]
    )
    assert whole.wait_seconds > 0
    assert whole.frame_indices(9) == [8]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1.7e308, -1e31])
def test_a_number_that_is_not_finite_is_never_valid(bad):
    scores = Scores(torch.tensor([[1.0, bad]], dtype=torch.float64), torch.tensor([[True, True]]))
    assert scores.valid.tolist() == [[True, False]]
    assert Scores.rows([scores, Scores.failed(1, 2)]).valid.tolist() == [[True, False], [False, False]]
    assert Scores.columns([scores, Scores.of(torch.ones(1, 1))]).valid.tolist() == [[True, False, True]]
    with pytest.raises(ValueError, match=r"\(1, 2\) scores with a mask of \(1, 1\)"):
        Scores(torch.ones(1, 2), torch.ones(1, 1))


def test_what_is_neither_a_reward_nor_a_function_is_refused():
    class Likeness:
        names = ("likeness",)

        def score(self, videos, prompts):
            return Scores.of(torch.ones(1, 1))

    with pytest.raises(ConfigError, match=r"neither a reward nor a function; write class Likeness\(Reward\)"):
        as_reward(Likeness())
