"""The laboratory's held-out measures as a scorer: known answers, and the figures of the laboratory's own evaluation."""

import pytest
import torch

from sage_grpo.config import ConfigError, load_recipe
from sage_grpo.core.protocols import Prompt
from sage_grpo.lab.clips import as_frames
from sage_grpo.lab.shapes.evaluate import evaluate
from sage_grpo.lab.shapes.heldout import ShapesHeldOut
from sage_grpo.lab.shapes.world import Scene, random_scene, render
from sage_grpo.rewards.errors import RewardError
from sage_grpo.training import build


@pytest.mark.slow
def test_real_clips_are_near_and_right_and_noise_is_its_own_distance():
    scene = random_scene(24, torch.Generator().manual_seed(0))
    clips, prompts = render(scene), [Prompt(text) for text in scene.prompts]
    good = ShapesHeldOut().score(as_frames(clips), prompts).values
    assert good[:, 0].max() < 0.01  # the rounding to bytes
    assert good[:, 1].min() == 1
    noise = 0.1 * torch.randn(clips.shape, generator=torch.Generator().manual_seed(1)).clamp(-2, 2)
    noisy = ShapesHeldOut().score(as_frames((clips * 0.8) + noise), prompts).values
    assert noisy[:, 0].min() > 0.1
    turned = ShapesHeldOut().score(as_frames(clips.flip(2)), prompts).values
    assert turned[:, 1].max() == 0  # it moves the other way
    assert turned[:, 0].max() < 0.01


def test_diversity_is_the_distance_to_the_others_of_the_prompt_in_what_it_leaves_open():
    """Place, speed and size count; a wrong colour, shape or direction is no variety."""
    scene = random_scene(3, torch.Generator().manual_seed(2))
    clips = as_frames(render(scene))[[0, 0, 1, 2]]
    prompts = [Prompt("a red circle moving left")] * 3 + [Prompt("a red circle moving up")]
    found = ShapesHeldOut().score(clips, prompts)
    zero = torch.zeros(2, dtype=torch.long)
    flat = render(Scene(zero, zero, zero, scene.numbers[:2])).flatten(1)  # red circles moving left, at their places
    apart = (flat[0] - flat[1]).norm().item() / flat.shape[1] ** 0.5
    assert found.values[:3, 2].tolist() == pytest.approx([apart / 2, apart / 2, apart], rel=0.02)
    assert found.valid[:, 2].tolist() == [True, True, True, False]  # one alone has none
    painted = Scene(scene.shape[[0, 0]], torch.tensor([0, 1]), scene.direction[[0, 0]], scene.numbers[[0, 0]])
    same = ShapesHeldOut().score(as_frames(render(painted)), prompts[:2])
    assert same.values[:, 2].max() < 0.01


@pytest.mark.slow
def test_it_says_what_the_laboratory_says():
    """Of the same videos, up to what they lose as bytes: the laboratory measures before light is cut to the range."""
    config = load_recipe("lab-paper")
    own = evaluate(build.build_model(config), config, 12)
    found = ShapesHeldOut().score(own.videos, [Prompt(text) for text in own.prompts]).values
    assert found[:, 0].mean().item() == pytest.approx(own.distance.mean().item(), abs=0.01)
    assert found[:, 1].mean().item() == pytest.approx(own.accuracy.mean().item(), abs=0.1)
    assert found[:, 2].mean().item() == pytest.approx(own.diversity, abs=0.01)


def test_it_cannot_be_trained_on_and_wants_its_own_clips():
    with pytest.raises(ConfigError, match="cannot be trained on: it is what the laboratory's rewards are held against"):
        build.build_rewards(load_recipe({"rewards": [{"type": "shapes-heldout"}]}))
    with pytest.raises(RewardError, match="for the model `shapes` alone"):
        ShapesHeldOut().score(torch.zeros(1, 8, 16, 16, 3, dtype=torch.uint8), [Prompt("a red circle moving left")])
