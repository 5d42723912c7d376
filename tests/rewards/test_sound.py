"""A sound at another rate is the same sound, and windows are where arithmetic says."""

import math

import pytest
import torch

from sage_grpo.rewards.sound import Clip, window_starts


def tone(hertz, sample_rate, seconds=1.0):
    return torch.sin(2 * math.pi * hertz * torch.arange(round(seconds * sample_rate)) / sample_rate)


def clip(wave, sample_rate):
    return Clip(torch.zeros(1, 4, 4, 3, dtype=torch.uint8), 8.0, wave, sample_rate)


@pytest.mark.parametrize(
    ("given", "wanted"), [(8_000, 48_000), (24_000, 48_000), (44_100, 48_000), (48_000, 16_000), (44_100, 16_000)]
)
def test_a_tone_stays_itself_at_another_rate(given, wanted):
    found = clip(tone(440, given)[None], given).mono(wanted)
    assert len(found) == wanted
    inside = slice(wanted // 10, -wanted // 10)  # the filter has nothing beyond the ends
    assert (found - tone(440, wanted).double())[inside].abs().max() < 2e-3


def test_a_tone_that_the_rate_cannot_carry_is_gone():
    """Every third sample alone would turn 12 kHz into 4 kHz."""
    wave = tone(12_000, 48_000)[None]
    assert wave[0, ::3].abs().max() > 0.8
    assert clip(wave, 48_000).mono(16_000)[1_000:-1_000].abs().max() < 5e-3  # 46 decibels below


def test_at_its_own_rate_it_is_the_mean_of_the_channels():
    wave = torch.randn(2, 100, generator=torch.Generator().manual_seed(0))
    assert torch.equal(clip(wave, 16_000).mono(16_000), (wave[0].double() + wave[1].double()) / 2)
    assert clip(torch.stack([wave[0], -wave[0]]), 16_000).mono(48_000).abs().max() == 0


@pytest.mark.parametrize(
    ("total", "length", "count", "starts"),
    [(10, 10, 1, [0]), (3, 10, 1, [0]), (3, 10, 3, [0, 0, 0]), (25, 10, 3, [0, 7, 15]), (11, 10, 2, [0, 1])],
)
def test_windows_are_spread_from_the_start_to_the_end(total, length, count, starts):
    assert window_starts(total, length, count) == starts
