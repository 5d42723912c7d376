"""Checks that each scorer must pass on its toy version: call `check(MyScorer)`.

The test suite runs them for every built-in scorer.
"""

import math
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from sage_grpo.core.protocols import Prompt, Videos
from sage_grpo.core.reward import Reward
from sage_grpo.core.scores import Scores
from sage_grpo.registry import resolve_reward, rewards
from sage_grpo.rewards.frames import VideoScorer

TEXTS = ('a shop sign that says "open late"', 'a red cat beside the words "good day"', 'a door with the number "42"')
REQUIRED: Sequence[list[dict[str, Any]]] = (  # for a scorer that reads what must be there
    [{"class": "shop", "count": 1}, {"class": "sign", "count": 1, "position": ["above", 0]}],
    [{"class": "cat", "count": 1, "color": "red"}],
    [{"class": "door", "count": 2}],
)
FRAMES, HEIGHT, WIDTH = 5, 72, 128
FRAME_RATE, SAMPLE_RATE = 8, 8000
Numbers = Sequence[float | None]  # of one video
SMALL = ((1, HEIGHT, WIDTH), (2, 16, 16), (3, 1, 1), (3, 2, 40), (0, 16, 16))  # frames, height, width


def scorers() -> list[type[VideoScorer]]:
    """Return the classes of all built-in rewards that score one video at a time."""
    classes = [resolve_reward(name) for name in rewards()]
    return [cls for cls in classes if issubclass(cls, VideoScorer)]


def material() -> tuple[Tensor, list[Prompt]]:
    """Return three test videos, uint8 (3, FRAMES, HEIGHT, WIDTH, 3), and their prompts.

    The videos differ in text, colours, texture and motion.
    """
    videos = [_video(i, words) for i, words in enumerate(("open late", "good", ""))]
    columns = [{"number": i, "include": required} for i, required in enumerate(REQUIRED)]
    return torch.stack(videos), [Prompt(text, row) for text, row in zip(TEXTS, columns, strict=True)]


def heard(frames: Tensor, prompts: Sequence[Prompt]) -> Videos:
    """Return the videos with sound, a tone per video.

    The larger `number` in the columns of a video's prompt, the later and higher its tone.
    """
    time = torch.arange(SAMPLE_RATE * FRAMES // FRAME_RATE) / SAMPLE_RATE
    tones = [
        torch.where(time >= number / FRAME_RATE, 0.5 * torch.sin(2 * math.pi * 220 * (number + 1) * time), 0)
        for number in (prompt.columns["number"] for prompt in prompts)
    ]
    return Videos(frames, float(FRAME_RATE), torch.stack(tones)[:, None], SAMPLE_RATE)


def scored(reward: Reward, frames: Tensor, prompts: Sequence[Prompt]) -> Scores:
    """Return a reward's scores through `submit`, as a run gets them.

    A reward that does not use sound gets frames alone.
    """
    return reward.submit(heard(frames, prompts) if reward.uses_audio else Videos(frames), prompts)()


def _video(number: int, words: str) -> Tensor:
    texture = np.random.default_rng(number).integers(0, 60 + 40 * number, (9, 16, 3), dtype=np.uint8)
    ground = Image.fromarray(texture).resize((2 * WIDTH, HEIGHT), Image.Resampling.BICUBIC)
    frames = []
    for t in range(FRAMES):
        shift = (1 + 2 * number) * t
        frame = ground.crop((shift, 0, shift + WIDTH, HEIGHT))
        centre = (WIDTH // 2, HEIGHT // 2)
        ImageDraw.Draw(frame).text(centre, words, "white", ImageFont.load_default(24), anchor="mm")
        frames.append(np.array(frame))
    return torch.from_numpy(np.stack(frames))


def same(scores: Scores, expected: Scores, what: str) -> None:
    assert torch.equal(scores.valid, expected.valid), f"{what}: other videos are masked"
    off = (scores.values - expected.values)[expected.valid].abs()
    assert not (off > 1e-6).any(), f"{what}: scores differ by up to {off.max():.2g}"


def well_formed(scores: Scores, reward: Reward, count: int) -> None:
    shape = (count, len(reward.names))
    assert tuple(scores.values.shape) == tuple(scores.valid.shape) == shape, (
        f"one row per video, one column per name: {shape}"
    )
    assert scores.values.dtype == torch.float64, f"values are {scores.values.dtype}, not float64"
    assert scores.valid.dtype == torch.bool, f"valid is {scores.valid.dtype}, not bool"


def check_names(reward: Reward) -> None:
    """Check that each score has a name of its own."""
    assert len(reward.names), "a scorer needs a name for its score"
    assert all(isinstance(name, str) and name.strip() for name in reward.names), "a name is empty"
    assert len(set(reward.names)) == len(reward.names), f"a name stands twice in {list(reward.names)}"


def check_scores(reward: Reward) -> None:
    """Check the scores' shapes and types, that each is valid for some video, and that not all videos score the same."""
    videos, prompts = material()
    scores = scored(reward, videos, prompts)
    well_formed(scores, reward, len(videos))
    assert scores.valid.any(0).all(), "a score is masked for every video"
    columns = zip(scores.values.T, scores.valid.T, strict=True)
    assert max(values[ok].std(correction=0) for values, ok in columns) > 1e-9, (
        "all videos score the same: does it look at them?"
    )


def check_repeats(reward: Reward) -> None:
    """Check that scoring the same videos twice gives the same scores."""
    same(scored(reward, *material()), scored(reward, *material()), "scored again")


def check_batch(reward: Reward) -> None:
    """Check that a video gets the same score alone as together with others."""
    videos, prompts = material()
    together = scored(reward, videos, prompts)
    alone = [scored(reward, videos[i : i + 1], prompts[i : i + 1]) for i in range(len(videos))]
    same(Scores.rows(alone), together, "scored alone")


def check_order(reward: Reward) -> None:
    """Check that each video keeps its score when the order of the videos changes."""
    videos, prompts = material()
    straight, order = scored(reward, videos, prompts), [2, 0, 1]
    turned = scored(reward, videos[order], [prompts[i] for i in order])
    same(turned, Scores(straight.values[order], straight.valid[order]), "in another order")


def check_inputs(reward: Reward) -> None:
    """Check that scoring does not change the videos or the prompts."""
    videos, prompts = material()
    before = videos.clone(), deepcopy(prompts)
    scored(reward, videos, prompts)
    assert torch.equal(videos, before[0]), "the scorer changed the videos"
    assert prompts == before[1], "the scorer changed the prompts"


def check_small(reward: Reward) -> None:
    """Check that videos of one frame or few pixels raise no error, and that videos without frames are masked."""
    for frames, height, width in SMALL:
        prompts = material()[1][:2]
        scores = scored(reward, torch.full((2, frames, height, width, 3), 90, dtype=torch.uint8), prompts)
        well_formed(scores, reward, 2)
        assert frames or not scores.valid.any(), "a video without frames has a score"


def check_broken(reward: Reward) -> None:
    """Check that a video whose scoring fails, or gives NaN, is masked, and that the other videos keep their scores.

    If scoring fails for all videos, a scorer that has never scored a video must raise the error. A scorer that has
    scored one must mask them all.
    """
    videos, prompts = material()
    whole = scored(reward, videos, prompts)
    if not isinstance(reward, VideoScorer):  # a scorer with a way of its own: nothing to break it by
        return
    way = "score_clip" if reward.uses_audio else "score_video"
    inner = getattr(reward, way)

    def failing(faulty: set[int], how: Callable[[], Numbers]) -> Callable[[Any, Prompt], Numbers]:
        return lambda video, prompt: how() if prompt.columns["number"] in faulty else inner(video, prompt)

    def fail() -> Numbers:
        raise RuntimeError("planted")

    valid = whole.valid.clone()
    valid[1] = False
    try:
        for how in (fail, lambda: [float("nan")] * len(reward.names)):
            setattr(reward, way, failing({1}, how))
            same(scored(reward, videos, prompts), Scores(whole.values, valid), "with a broken video among them")
        setattr(reward, way, failing({0, 1, 2}, fail))
        assert not scored(reward, videos, prompts).valid.any(), "videos that all fail have a score"
        reward._has_scored = False
        try:
            scored(reward, videos, prompts)
        except RuntimeError:
            return
        raise AssertionError("every video failed in the same way, and nothing was raised")
    finally:
        reward._has_scored = bool(whole.valid.any())
        delattr(reward, way)


def check_long_prompt(reward: Reward) -> None:
    """Check that a prompt of a megabyte is masked or scored, without changing or delaying the other videos' scores."""
    videos, prompts = material()
    started = time.monotonic()
    whole = scored(reward, videos, prompts)
    usual = time.monotonic() - started
    for text in ("‘" * 1_000_000, "\x00<|im_end|>" * 80_000):
        prompts[1], started = Prompt(text, {"number": 1}), time.monotonic()
        scores = scored(reward, videos, prompts)
        well_formed(scores, reward, 3)
        others = [0, 2]
        same(
            Scores(scores.values[others], scores.valid[others]),
            Scores(whole.values[others], whole.valid[others]),
            "beside a prompt of a megabyte",
        )
        assert time.monotonic() - started < 30 + 10 * usual, "a prompt of a megabyte took half a minute"


def check_frames(reward: Reward) -> None:
    """Check that scores depend only on the frames in `frame_indices`, because a fleet of scorers is sent only these."""
    videos, prompts = material()
    needed = reward.frame_indices(FRAMES)
    if needed is not None:
        black = torch.zeros_like(videos)
        black[:, list(needed)] = videos[:, list(needed)]
        same(
            scored(reward, black, prompts), scored(reward, videos, prompts), "without the frames that it does not need"
        )


def check_silent(reward: Reward) -> None:
    """Check that scorers of sound mask videos without sound, and that all other scorers ignore sound."""
    videos, prompts = material()
    with_sound, without = (reward.submit(v, prompts)() for v in (heard(videos, prompts), Videos(videos)))
    if reward.uses_audio:
        assert not without.valid.any(), "it listens, and has a score where there is nothing to hear"
    else:
        same(with_sound, without, "with sound beside the frames")


CHECKS: Sequence[Callable[[Reward], None]] = (
    check_names,
    check_scores,
    check_repeats,
    check_batch,
    check_order,
    check_inputs,
    check_frames,
    check_small,
    check_broken,
    check_long_prompt,
    check_silent,
)


def check(scorer: type[Any]) -> list[str]:
    """Run all checks on a scorer's class, and return their names."""
    for run_check in CHECKS:
        run_check(scorer.tiny())
    return [run_check.__name__ for run_check in CHECKS]
