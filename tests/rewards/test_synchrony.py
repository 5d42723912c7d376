"""Onsets of motion and of sound: together, apart, or one of them not there."""

import math

import pytest
import torch

from rewards.heard import FRAMES, RATE, moving_from, tone_from
from sage_grpo.core.protocols import Prompt, Videos
from sage_grpo.rewards.function import FunctionReward
from sage_grpo.rewards.sound import Clip
from sage_grpo.rewards.synchrony import SynchronyReward, onsets


def synchrony(frames, wave, sample_rate=16_000):
    videos = Videos(frames[None], RATE, wave[None], sample_rate)
    scores = SynchronyReward().submit(videos, [Prompt("a square")])()
    assert scores.valid.all()
    return scores.values.item()


@pytest.mark.parametrize("frame", [4, 9, 15])
def test_sound_that_begins_with_the_motion(frame):
    # the first change is seen between frames `frame` and `frame` + 1
    at = [synchrony(moving_from(frame), tone_from((frame + 0.5 + late) / RATE)) for late in range(-6, 7)]
    assert at[6] > 0.95
    assert max(at) == at[6]
    assert 0.3 < at[5] < 0.8  # a frame early, or late
    assert 0.3 < at[7] < 0.8
    assert all(score < 0.05 for score in (*at[:3], *at[-3:]))


def test_only_time_matters():
    frames, score = moving_from(9), synchrony(moving_from(9), tone_from(9.5 / RATE))
    quiet = synchrony(frames, tone_from(9.5 / RATE, loud=0.05))
    other_rate = synchrony(frames, tone_from(9.5 / RATE, sample_rate=24_000), 24_000)
    stereo = synchrony(frames, tone_from(9.5 / RATE).repeat(2, 1))
    dark = synchrony(frames // 3, tone_from(9.5 / RATE))
    assert [quiet, other_rate, stereo, dark] == pytest.approx([score] * 4, abs=0.02)


def test_two_onsets_are_worth_more_than_one():
    frames = torch.cat([moving_from(4, 8)[:12], moving_from(4, 8)[:12].flip(2)])
    once, twice = tone_from(4.5 / RATE), tone_from(4.5 / RATE)
    pause = slice(round(8.5 / RATE * 16_000), round(11.5 / RATE * 16_000))
    twice[:, pause] = 0
    assert synchrony(frames, twice) > synchrony(frames, once) + 0.1


@pytest.mark.parametrize(
    ("frames", "wave"),
    [
        (moving_from(9), torch.zeros(1, 48_000)),
        (moving_from(FRAMES), tone_from(1.0)),
        (moving_from(FRAMES), torch.zeros(1, 48_000)),
    ],
)
def test_still_or_silent_earns_nothing(frames, wave):
    assert synchrony(frames, wave) == 0


def test_noise_is_no_onset():
    noise = 0.3 * torch.randn(1, 48_000, generator=torch.Generator().manual_seed(0))
    assert synchrony(moving_from(9), noise) < 0.25


def test_without_sound_it_is_masked():
    videos, prompts = moving_from(9)[None], [Prompt("a square")]
    reward = SynchronyReward()
    for silent in (Videos(videos, RATE), Videos(videos, None, tone_from(1.0)[None], 16_000)):
        assert not reward.submit(silent, prompts)().valid.any()
        assert reward.reasons == {0: "it has no sound"}
    assert not reward.score(videos, prompts).valid.any()


def test_loudness_is_the_root_mean_square():
    clip = Clip(moving_from(0), RATE, torch.tensor([[1.0, 1.0, -1.0, -1.0, 0.5, 0.5, 0.0, 0.0]]), 8)
    times = torch.tensor([0.25, 0.625, 5.0], dtype=torch.float64)
    found = clip.loudness(times, 0.5)
    assert found.tolist() == pytest.approx([1.0, math.sqrt((1 + 0.25 + 0.25) / 4), 0.0])


def test_rises_of_a_curve():
    rises = onsets(torch.tensor([0.0, 0.0, 1.0, 1.0, 0.0, 3.0], dtype=torch.float64))
    assert rises.tolist() == [0, 0.25, 0.5, 0.25, 0.75, 1.5]


def test_a_function_that_takes_sound_hears():
    def loud(videos, prompts, sound, sample_rate):
        return [sample_rate * wave.abs().max().item() for wave in sound]

    reward, prompts = FunctionReward(loud), [Prompt("a"), Prompt("b")]
    frames = moving_from(3)[None].repeat(2, 1, 1, 1, 1)
    assert reward.uses_audio
    assert not reward.submit(Videos(frames, RATE), prompts)().valid.any()
    heard = Videos(frames, RATE, torch.tensor([[[0.5, 0.1]], [[0.25, 0.0]]]), 100)
    assert reward.submit(heard, prompts)().values.flatten().tolist() == [50, 25]
    told = [Prompt("a", {"sound": "loud"}), Prompt("b", {"sound": "low"})]
    by_column = FunctionReward(lambda videos, prompts, sound: [len(word) for word in sound])
    assert by_column.submit(Videos(frames, RATE), told)().values.flatten().tolist() == [4, 3]  # a column of the prompts
    assert not FunctionReward(lambda videos, prompts: [0.0] * len(videos)).uses_audio
