"""Each degradation does what it says, and only that."""

import numpy as np
import pytest
import torch

from rewards.clips import pan
from sage_grpo.evaluation.audit.degrade import DEGRADATIONS, degradation, degrade
from sage_grpo.evaluation.audit.natural import FRAMES, HEIGHT, WIDTH, clip, scenes

CLIP = pan(frames=9)[:, :96, :128]


def change(frames):
    """From frame to frame, in grey levels."""
    return frames.double().diff(dim=0).abs().mean().item()


def detail(frames):
    """Of neighbouring pixels, in grey levels."""
    return frames.double().diff(dim=2).abs().mean().item()


@pytest.mark.parametrize("name", list(DEGRADATIONS))
def test_copies_have_the_size_of_the_clip_and_leave_it_alone(name):
    before = CLIP.clone()
    copy = degrade(name, CLIP, seed=3)
    assert copy.dtype == torch.uint8
    assert copy.shape == CLIP.shape
    assert torch.equal(CLIP, before)
    assert not torch.equal(copy, CLIP)
    assert torch.equal(copy, degrade(name, CLIP, seed=3))
    assert (DEGRADATIONS[name].__doc__ or "").strip()


@pytest.mark.parametrize("name", ["shuffle", "shake", "flicker", "noise", "grain"])
def test_chance_is_in_the_seed(name):
    assert not torch.equal(degrade(name, CLIP, 0), degrade(name, CLIP, 1))


@pytest.mark.parametrize("name", list(DEGRADATIONS))
def test_a_single_small_frame_is_no_trouble(name):
    assert degrade(name, CLIP[:1, :9, :11]).shape == (1, 9, 11, 3)


def test_static_has_no_motion_and_keeps_a_frame():
    copy = degrade("static", CLIP)
    assert change(copy) == 0
    assert torch.equal(copy[0], CLIP[4])


def test_half_shows_every_second_frame_twice():
    copy = degrade("half", CLIP)
    assert torch.equal(copy[0::2], CLIP[0::2])
    assert torch.equal(copy[1::2], CLIP[0:-1:2])


def test_shuffle_keeps_the_frames():
    copy = degrade("shuffle", CLIP)
    assert sorted(frame.numpy().tobytes() for frame in copy) == sorted(frame.numpy().tobytes() for frame in CLIP)
    assert change(copy) > 1.2 * change(CLIP)


def test_shake_moves_whole_frames_within_its_reach():
    copy, reach = degrade("shake", CLIP), round(0.03 * 96)
    for frame, shaken in zip(CLIP, copy, strict=True):
        inside = shaken[reach:-reach, reach:-reach]
        shifts = [
            (y, x)
            for y in range(2 * reach + 1)
            for x in range(2 * reach + 1)
            if torch.equal(inside, frame[y : y + inside.shape[0], x : x + inside.shape[1]])
        ]
        assert len(shifts) == 1
    assert change(copy) > change(CLIP)


def test_flicker_changes_the_light_and_nothing_else():
    copy = degrade("flicker", CLIP)
    gains = copy.double().mean((1, 2, 3)) / CLIP.double().mean((1, 2, 3))
    assert gains.min() > 0.74
    assert gains.max() < 1.26
    assert gains.std() > 0.05


def test_cut_has_one_jump_in_the_middle_and_crossfade_has_none():
    jumps = degrade("cut", CLIP).double().diff(dim=0).abs().mean((1, 2, 3))
    assert jumps.argmax() == 3
    assert jumps[3] > 2.5 * jumps.sort().values[-2]
    faded = degrade("crossfade", CLIP)
    assert torch.equal(faded[0], CLIP[0])
    assert torch.equal(faded[-1], degrade("cut", CLIP)[-1])
    half_way = (CLIP[4].double() + degrade("cut", CLIP)[4].double()) / 2
    assert (faded[4].double() - half_way).abs().max() <= 0.5
    assert faded.double().diff(dim=0).abs().mean((1, 2, 3)).max() < 0.6 * jumps[3]


def test_flat_has_no_texture_and_keeps_the_colour():
    copy = degrade("flat", CLIP)
    assert detail(copy) == change(copy) == 0
    assert (copy[0, 0, 0].double() - CLIP.double().mean((0, 1, 2))).abs().max() <= 0.5


def test_blur_takes_detail_away_and_keeps_the_light():
    copy = degrade("blur", CLIP)
    assert detail(copy) < 0.5 * detail(CLIP)
    assert abs(copy.double().mean() - CLIP.double().mean()) < 1


@pytest.mark.parametrize(("name", "sigma"), [("noise", 40), ("grain", 6)])
def test_noise_has_its_size_and_is_new_in_each_frame(name, sigma):
    grey = torch.full((4, 64, 64, 3), 128, dtype=torch.uint8)
    added = degrade(name, grey).double() - 128
    assert added.std().item() == pytest.approx(sigma, rel=0.05)
    assert abs(np.corrcoef(added[0].flatten(), added[1].flatten())[0, 1]) < 0.05


def test_sharpen_bright_and_vivid():
    assert detail(degrade("sharpen", CLIP)) > 1.5 * detail(CLIP)
    assert torch.equal(degrade("bright", CLIP).int(), (2 * CLIP.int()).clamp(max=255))
    vivid = degrade("vivid", CLIP)
    assert (vivid.double().std(-1).mean() > 1.5 * CLIP.double().std(-1).mean()).item()
    grey = CLIP[..., :1].expand(CLIP.shape)
    assert torch.equal(degrade("vivid", grey), grey)  # what has no colour stays so


def test_a_new_one_is_one_function():
    def negative(frames, random):
        """Colours inverted."""
        return 255 - frames

    try:
        degradation(negative)
        assert torch.equal(degrade("negative", CLIP), 255 - CLIP)
    finally:
        del DEGRADATIONS["negative"]


def test_what_is_no_clip_is_refused():
    with pytest.raises(ValueError, match=r"a clip is uint8 .* not torch.float32"):
        degrade("blur", CLIP.float())


@pytest.mark.slow
def test_the_clips_made_here_move_have_texture_and_are_the_same_each_time():
    clips = [(name, scene.prompt, clip(name, scene)) for name, scene in scenes().items()]
    assert len(clips) >= 8
    for name, prompt, frames in clips:
        assert frames.shape == (FRAMES, HEIGHT, WIDTH, 3)
        assert prompt
        still = change(degrade("static", frames))
        assert change(frames) > still + 2, name  # sensor noise alone is 1.7
        assert detail(frames) > 2, name
    first, scene = next(iter(scenes().items()))
    assert torch.equal(clip(first, scene), clips[0][2])
    assert sum('"' in prompt for _, prompt, _ in clips) >= 3  # words to read
