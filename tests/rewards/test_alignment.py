"""Captions find their pictures and pictures their captions, with the real weights on real photographs."""

import pytest

pytest.importorskip("efficientnet_lite_pytorch")
pytest.importorskip("transformers")

import torch

from rewards.pictures import CAPTIONS, picture
from sage_grpo.config import ConfigError, RecipeConfig
from sage_grpo.core.protocols import Prompt
from sage_grpo.rewards.alignment import AlignmentReward
from sage_grpo.training.build import build_rewards

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def reward():
    return AlignmentReward(frames=1)


@pytest.fixture(scope="module")
def table(reward):
    """Scores of every picture (rows) with every caption."""
    rows, classify = [], AlignmentReward.classes
    for name in CAPTIONS:
        videos = picture(name)[None, None].expand(len(CAPTIONS), -1, -1, -1, -1)
        seen = classify(reward, videos[0])
        reward.classes = lambda _, seen=seen: seen  # it does not depend on the caption
        scores = reward.score(videos, [Prompt(text) for text in CAPTIONS.values()])
        assert scores.valid.all()
        rows.append(scores.values[:, 0])
    del reward.classes
    return torch.stack(rows)


def test_every_caption_finds_its_picture_and_every_picture_its_caption(table):
    own = torch.arange(len(CAPTIONS))
    assert torch.equal(table.argmax(0), own)
    assert torch.equal(table.argmax(1), own)


def test_the_right_caption_is_clearly_better(table):
    others = table[~torch.eye(len(table), dtype=torch.bool)]
    assert table.diagonal().min() > 0.3
    assert others.mean() < 0.2


def test_the_best_class_is_the_right_one(reward):
    wanted = {"coffee": {"espresso"}, "camera": {"tripod"}, "chelsea": {"Egyptian Mau", "tabby cat"}}
    for name, labels in wanted.items():
        best = reward.classes(picture(name)[None])[0].topk(3).indices.tolist()
        assert {reward.labels[i] for i in best} & labels


def test_frames_are_averaged(reward):
    cat, cup = picture("chelsea")[:300, :400], picture("coffee")[:300, :400]
    prompt = [Prompt("a photo of a cat")]
    alone = [reward.score(clip[None, None], prompt).values.item() for clip in (cat, cup)]
    reward.frames = 2
    both = reward.score(torch.stack([cat, cup])[None], prompt).values.item()
    assert both == pytest.approx(sum(alone) / 2, abs=1e-9)
    assert alone[0] > alone[1] + 0.2


def test_recipes_find_it_and_wrong_options_are_told():
    assert build_rewards(RecipeConfig(rewards=[{"type": "alignment"}]))[0].names == ("alignment",)
    with pytest.raises(ConfigError, match="alignment: frames=0; at least one is needed"):
        build_rewards(RecipeConfig(rewards=[{"type": "alignment", "options": {"frames": 0}}]))
