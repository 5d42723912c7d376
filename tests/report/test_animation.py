"""The moving picture before and after: what moves, what is marked, and how wide it is."""

import io
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from sage_grpo.report.animation import MET, MISSED, WIDTH, Shown, before_after


def clip(colour, frames=4):
    video = np.zeros((frames, 32, 32, 3), np.uint8)
    for number in range(frames):
        video[number, :, number * 8 : number * 8 + 8] = colour
    return video


def pictures(data):
    with Image.open(io.BytesIO(data)) as image:
        out = []
        for number in range(image.n_frames):
            image.seek(number)
            out.append(np.asarray(image.convert("RGB")).astype(int))
        return out, image.info.get("loop")


def near(picture, colour):
    wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    return (np.abs(picture - wanted).max(-1) < 40).sum()


def test_every_frame_of_the_videos_is_shown_and_repeated_for_ever():
    shown = [Shown("a red bar moving right", clip((255, 0, 0)), clip((0, 0, 255)), False, True)]
    frames, loop = pictures(before_after(shown))
    assert len(frames) == 4
    assert loop == 0
    assert frames[0].shape[1] == WIDTH
    red = [np.argwhere((f[..., 0] > 200) & (f[..., 2] < 60)).mean(0)[1] for f in frames]
    assert all(b > a + 10 for a, b in pairwise(red))  # it moves to the right


@pytest.mark.parametrize(("before", "after"), [(False, True), (True, True), (False, False)])
def test_marks_say_which_video_is_what_the_prompt_asks_for(before, after):
    black = clip((0, 0, 0))
    frames, _ = pictures(before_after([Shown("a prompt", black, black, before, after)]))
    left, right = frames[0][:, : WIDTH // 4 + 5], frames[0][:, WIDTH // 4 + 5 :]
    for part, met in ((left, before), (right, after)):
        assert (near(part, MET) > 50) == met
        assert (near(part, MISSED) > 50) == (not met)


def test_what_a_judge_saw_is_written_beside_its_mark():
    black = clip((0, 0, 0))
    plain, told = (
        pictures(before_after([Shown("a prompt", black, black, False, False, seen)]))[0][0] for seen in ("", "4711")
    )
    different = np.argwhere((plain != told).any(-1))
    assert len(different) > 50
    assert different[:, 1].max() < WIDTH // 4  # on the side of what was before


def test_wide_videos_have_a_row_each():
    wide = clip((255, 0, 0)).repeat(3, 2)  # three times as wide as high
    one, two = (pictures(before_after([Shown("a prompt", wide, wide, True, True)] * n))[0][0] for n in (1, 2))
    assert two.shape[0] > 1.7 * one.shape[0]
    red = np.argwhere((one[..., 0] > 200) & (one[..., 2] < 60))[:, 1]
    assert red.max() - red.min() > WIDTH / 2  # the bar at the left of both


def test_more_prompts_make_more_rows_and_none_is_refused():
    item = Shown("a prompt", clip((255, 0, 0)), clip((255, 0, 0)), True, True)
    two, four = (pictures(before_after([item] * count))[0][0].shape[0] for count in (2, 4))
    assert four > 1.8 * two
    with pytest.raises(ValueError, match="at least one prompt"):
        before_after([])
