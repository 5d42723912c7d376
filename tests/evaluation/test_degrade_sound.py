"""Each way to degrade a sound does what it says, and only that; and the clips that can be heard sound as they move."""

import numpy as np
import pytest
import torch

from sage_grpo.evaluation.audit.degrade_sound import SOUND_DEGRADATIONS, degrade_sound
from sage_grpo.evaluation.audit.natural import FPS, HEIGHT, WIDTH, scenes
from sage_grpo.evaluation.audit.natural_sound import FRAMES, SAMPLE_RATE, going, heard_clip, wave, way

RATE = 8000
TIME = torch.arange(RATE) / RATE
SOUND = torch.stack([0.4 * torch.sin(2 * torch.pi * 220 * TIME), 0.2 * torch.sin(2 * torch.pi * 330 * TIME)])


def loudness(sound):
    return sound.double().square().mean().sqrt().item()


def decibels(ratio):
    return 20 * np.log10(ratio)


@pytest.mark.parametrize("name", list(SOUND_DEGRADATIONS))
def test_copies_are_as_long_as_the_sound_and_leave_it_alone(name):
    before = SOUND.clone()
    copy = degrade_sound(name, SOUND, RATE, seed=3)
    assert copy.shape == SOUND.shape
    assert copy.abs().max() <= 1
    assert torch.equal(SOUND, before)
    assert not torch.equal(copy, SOUND)
    assert torch.equal(copy, degrade_sound(name, SOUND, RATE, seed=3))


@pytest.mark.parametrize("name", list(SOUND_DEGRADATIONS))
@pytest.mark.parametrize("sound", [torch.zeros(1, 100), torch.ones(1, 1)])
def test_silence_and_a_moment_are_no_trouble(name, sound):
    copy = degrade_sound(name, sound, RATE)
    assert copy.shape == sound.shape
    assert copy.isfinite().all()


def test_muted_is_silent():
    assert not degrade_sound("muted", SOUND, RATE).any()


@pytest.mark.parametrize("by", [20, 40])
def test_faint_is_the_same_less_loud(by):
    copy = degrade_sound(f"faint-{by}dB", SOUND, RATE)
    assert torch.allclose(copy * 10 ** (by / 20), SOUND, atol=1e-6)


@pytest.mark.parametrize("seconds", [0.1, 0.25, 0.5])
def test_late_begins_later_by_so_much(seconds):
    copy, shift = degrade_sound(f"late-{seconds}s", SOUND, RATE), round(seconds * RATE)
    assert not copy[:, :shift].any()
    assert torch.equal(copy[:, shift:], SOUND[:, :-shift])


def test_early_begins_earlier():
    copy = degrade_sound("early-0.25s", SOUND, RATE)
    assert torch.equal(copy[:, :-2000], SOUND[:, 2000:])
    assert not copy[:, -2000:].any()


@pytest.mark.parametrize("by", [12, 30])
def test_clipped_is_cut_at_its_peak(by):
    copy, limit = degrade_sound(f"clipped-{by}dB", SOUND, RATE), 10 ** (by / 20)
    assert copy.abs().max() == pytest.approx(SOUND.abs().max().item(), abs=1e-6)
    inside = SOUND.abs() < 0.99 * SOUND.abs().max() / limit
    assert torch.allclose(copy[inside], SOUND[inside] * limit, atol=1e-5)
    assert (copy[0].abs() > 0.399).float().mean() > 0.5  # most of the time at the end of its range
    quiet = degrade_sound(f"clipped-{by}dB", 0.01 * SOUND, RATE)
    assert torch.allclose(100 * quiet, copy, atol=1e-5)


@pytest.mark.parametrize("below", [0, 20])
def test_hiss_is_so_far_below_the_sound_and_new_with_the_seed(below):
    name = f"hiss-{below}dB"
    noise = degrade_sound(name, SOUND, RATE) - SOUND
    assert decibels(loudness(SOUND) / loudness(noise)) == pytest.approx(below, abs=0.5)
    spectrum = np.abs(np.fft.rfft(noise[0].numpy())).reshape(-1)[:4000].reshape(4, -1).mean(1)
    assert spectrum.max() / spectrum.min() < 1.2  # white
    assert not torch.equal(degrade_sound(name, SOUND, RATE, 1), degrade_sound(name, SOUND, RATE, 2))


def test_what_is_no_sound_is_refused():
    for wrong in (torch.zeros(3), torch.zeros(2, 0), torch.zeros(1, 3, dtype=torch.int16)):
        with pytest.raises(ValueError, match=r"a sound is floats \(channels, samples\), not "):
            degrade_sound("muted", wrong, RATE)


def test_it_goes_and_rests():
    moves = [(0.5, 1.0), (1.5, 1.75)]
    far = way(np.array([0.0, 0.5, 0.75, 1.0, 1.4, 1.5, 1.75, 2.0]), moves)
    assert far.tolist() == pytest.approx([0, 0, 1 / 3, 2 / 3, 2 / 3, 2 / 3, 1, 1])


@pytest.mark.parametrize("name", list(scenes()))
def test_a_sound_is_loud_while_it_goes(name):
    moves, seconds = going(name), FRAMES / FPS
    heard = wave(name, moves, seconds)
    times = np.arange(len(heard)) / SAMPLE_RATE
    assert all(0 < start < end < seconds for start, end in moves)
    assert moves[0][1] + 0.1 < moves[1][0]  # a pause between them
    goes = np.any([(times > start + 0.02) & (times < end) for start, end in moves], axis=0)
    rests = ~np.any([(times > start) & (times < end + 0.3) for start, end in moves], axis=0)
    assert np.sqrt(np.square(heard[goes]).mean()) > 50 * np.sqrt(np.square(heard[rests]).mean())


def test_no_two_clips_go_at_the_same_time():
    starts = [start for name in scenes() for start, _ in going(name)]
    assert len(set(starts)) == 20


@pytest.mark.slow
def test_clips_that_can_be_heard_move_when_they_sound_and_are_the_same_each_time():
    for name, scene in scenes().items():
        videos = heard_clip(name, scene)
        assert videos.frames.shape == (1, FRAMES, HEIGHT, WIDTH, 3)
        assert videos.sound.shape == (1, 1, round(FRAMES / FPS * SAMPLE_RATE))
        change = videos.frames[0].double().diff(dim=0).abs().mean((1, 2, 3))
        times = (torch.arange(FRAMES - 1) + 0.5) / FPS
        moves = going(name)
        goes = torch.stack([(times > a + 1 / FPS) & (times < b - 1 / FPS) for a, b in moves]).any(0)
        rests = ~torch.stack([(times > a - 1 / FPS) & (times < b + 1 / FPS) for a, b in moves]).any(0)
        assert change[goes].min() > 1.5 * change[rests].max(), name  # sensor noise is there all the time
    first, scene = next(iter(scenes().items()))
    again = [heard_clip(first, scene) for _ in range(2)]
    assert torch.equal(again[0].frames, again[1].frames)
    assert torch.equal(again[0].sound, again[1].sound)
