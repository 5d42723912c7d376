"""Blur lowers sharpness, noise does not raise it, and beyond the natural level nothing is paid."""

import pytest
import torch

from rewards import clips
from sage_grpo.config import ConfigError
from sage_grpo.core.protocols import Prompt
from sage_grpo.rewards.sharpness import SharpnessReward

PAN = clips.pan(frames=3)


def sharpness(clip, **options):
    return SharpnessReward(**options).score(clip[None], [Prompt("")]).values.item()


def test_blur_lowers():
    levels = [sharpness(clips.blurred(PAN, radius)) for radius in (0, 0.7, 1.5, 3)]
    assert levels == sorted(levels, reverse=True)
    assert levels[0] > 0.8
    assert levels[-1] < 0.2


@pytest.mark.parametrize("radius", [0, 1, 2, 4])
@pytest.mark.parametrize("sigma", [2, 5, 15, 40])
def test_noise_does_not_pay(radius, sigma):
    clip = clips.blurred(PAN, radius)
    assert sharpness(clips.noisy(clip, sigma)) <= sharpness(clip) + 0.01


def test_noise_in_a_corner_does_not_pay():
    clip = clips.blurred(PAN, 3)
    partly = clip.clone()
    partly[:, :64, :96] = clips.noisy(clip, 30)[:, :64, :96]
    assert sharpness(partly) <= sharpness(clip) + 0.05


def test_nothing_but_noise_is_not_sharp():
    noise = torch.randint(0, 256, PAN.shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert sharpness(noise) < 0.05
    assert sharpness(torch.full_like(PAN, 90)) == 0


def test_beyond_the_natural_level_nothing_is_paid():
    letters = clips.written("SHARP", 128, 192, 50)
    assert sharpness(letters) == sharpness(clips.lit(letters, [0.9] * 3)) == pytest.approx(1)


def test_options_are_checked():
    with pytest.raises(ConfigError, match="must both be above 0"):
        SharpnessReward(natural=0)
