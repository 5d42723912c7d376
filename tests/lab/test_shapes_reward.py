"""The lab's rewards do what their names say, do not depend on size, and do not see the manifold's distance."""

import pytest
import torch

from sage_grpo.core.protocols import Prompt
from sage_grpo.lab.clips import as_frames
from sage_grpo.lab.shapes.reward import ShapesReward
from sage_grpo.lab.shapes.world import random_scene, render


@pytest.fixture(scope="module")
def real():
    scene = random_scene(200, torch.Generator().manual_seed(3))
    return scene, render(scene)


def score(clips, texts):
    frames = as_frames(clips)
    return ShapesReward().score(frames, [Prompt(text) for text in texts]).values


def test_real_clips_score_above_the_base_in_every_dimension(real):
    scene, clips = real
    values = score(clips, scene.prompts)
    assert (values.mean(0) > 0.25).all()  # a base model's mean is 0, its standard deviation 1


def faults(scene, clips):
    """What each kind of fault costs in the score that is there for it: VQ, MQ, TA."""
    good = score(clips, scene.prompts).mean(0)
    grey = score(clips * 0.6 - 0.1, scene.prompts).mean(0)
    shuffled = score(clips[:, :, torch.tensor([3, 0, 6, 1, 7, 4, 2, 5])], scene.prompts).mean(0)
    backwards = score(clips.flip(2), scene.prompts).mean(0)
    return good[0] - grey[0], good[1] - shuffled[1], good[2] - backwards[2]


@pytest.mark.slow
def test_each_fault_lowers_its_own_score(real):
    scene, clips = real
    good = score(clips, scene.prompts).mean(0)
    costs = faults(scene, clips)
    assert costs[0] > 1  # standard deviations of the base model
    assert costs[1] > 1
    assert costs[2] > 1.5
    wrong = score(clips, random_scene(200, torch.Generator().manual_seed(4)).prompts).mean(0)
    assert wrong[2] < good[2] - costs[2]  # nothing of the prompt is worse than one word of it
    backwards = score(clips.flip(2), scene.prompts).mean(0)
    assert backwards[1] == pytest.approx(good[1].item(), abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("column", [0, 1, 2])
def test_scores_do_not_depend_on_the_size(real, column):
    """From the smallest to the largest shape they change by a twentieth of what a fault costs, or less."""
    scene, clips = real
    values = score(clips, scene.prompts)[:, column]
    radius = scene.numbers[:, 3]
    slope = (values * (radius - radius.mean())).sum() / (radius - radius.mean()).square().sum()
    spread = slope.abs() * (radius.max() - radius.min())
    assert spread < 0.05 * faults(scene, clips)[column]


def test_what_is_surely_right_earns_no_more_by_being_larger_or_nearer_to_the_middle(real):
    scene, clips = real
    values = score(clips, scene.prompts)[:, 2]
    assert (values == values.max()).double().mean() > 0.8


def test_rewards_import_no_fit():
    """The held-out distance must not be reachable from the reward."""
    import inspect

    from sage_grpo.lab.shapes import reward as shapes

    assert "fit(" not in inspect.getsource(shapes)
    assert not hasattr(shapes, "fit")
