"""The world of shapes: its manifold is known, and the distance to it is exact and does not depend on size."""

import pytest
import torch

from sage_grpo.lab.shapes.world import (
    COLOURS,
    DIRECTIONS,
    HIGH,
    LOW,
    SHAPES,
    Scene,
    all_prompts,
    as_asked,
    coverage,
    fit,
    kept_out,
    parse_prompt,
    random_scene,
    render,
    training_prompts,
)


@pytest.fixture(scope="module")
def real():
    scene = random_scene(48, torch.Generator().manual_seed(0))
    return scene, render(scene)


def test_there_are_48_prompts_and_each_is_read_back():
    prompts = all_prompts()
    assert len(set(prompts)) == 48
    for text in prompts:
        shape, colour, direction = parse_prompt(text)
        assert text == f"a {COLOURS[colour]} {SHAPES[shape]} moving {DIRECTIONS[direction]}"
    with pytest.raises(ValueError, match="names none of circle, square, triangle"):
        parse_prompt("a red cat moving left")


def test_shapes_of_one_radius_have_one_area():
    numbers = torch.tensor([[0.0, 0.0, 0.3, 0.4]]).expand(3, 4)
    zero = torch.zeros(3, dtype=torch.long)
    light = (render(Scene(torch.arange(3), zero, zero, numbers)) + 1).sum((1, 2, 3, 4))
    assert light.max() / light.min() < 1.03


@pytest.mark.slow
def test_real_clips_have_distance_zero_and_are_read_back(real):
    scene, clips = real
    found = fit(clips)
    assert found.distance.max() < 1e-5
    for name in ("shape", "colour", "direction"):
        assert torch.equal(getattr(found.scene, name), getattr(scene, name))
    assert (found.scene.numbers - scene.numbers).abs().max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.02, 0.1])
def test_distance_of_noisy_clips_is_the_noise(real, noise):
    """Relative to the clip: |noise| / |clip|, as the definition says."""
    _, clips = real
    added = 2 * noise * torch.randn(clips.shape, generator=torch.Generator().manual_seed(1))
    expected = (added / 2).flatten(1).norm(dim=1) / ((clips + 1) / 2).flatten(1).norm(dim=1)
    torch.testing.assert_close(fit(clips + added).distance, expected, rtol=0.03, atol=0)


def test_shrinking_does_not_bring_a_shape_nearer():
    """Below the world's smallest radius a clip is off the manifold, and the more so the smaller it is."""
    distances = []
    for radius in (float(LOW[3]), 0.25, 0.15):
        numbers = torch.tensor([[0.0, 0.0, 0.3, radius]])
        one = torch.zeros(1, dtype=torch.long)
        distances.append(fit(render(Scene(one, one, one, numbers))).distance.item())
    assert distances[0] < 1e-5
    assert distances[0] < distances[1] < distances[2]
    assert distances[2] > 0.5


def test_distance_is_the_same_for_large_and_small(real):
    """A fault of the same kind, a hole in the shape, counts alike whatever the radius."""
    found = []
    for radius in (float(LOW[3]) + 0.06, float(HIGH[3]) - 0.01):  # dimmed light is nearest to a smaller shape
        numbers = torch.tensor([[0.0, 0.0, 0.3, radius]])
        one = torch.zeros(1, dtype=torch.long)
        clip = render(Scene(one, one, one, numbers))
        found.append(fit((clip + 1) * 0.7 - 1).distance.item())  # all light dimmed by a third
    assert found[0] == pytest.approx(found[1], rel=0.02)


def test_a_flat_video_is_far_away():
    assert fit(-torch.ones(1, 3, 8, 32, 32)).distance.item() > 0.9
    assert fit(torch.ones(1, 3, 8, 32, 32)).distance.item() > 0.9


def test_slopes_are_those_of_the_coverage():
    scene = random_scene(12, torch.Generator().manual_seed(5))
    numbers, step = scene.numbers.double(), 1e-6
    slopes = coverage(scene.shape, scene.direction, numbers, slopes=True)
    for index in range(4):
        unit = step * torch.eye(4, dtype=torch.float64)[index]
        ahead, behind = (coverage(scene.shape, scene.direction, n) for n in (numbers + unit, numbers - unit))
        off = (slopes[..., index] - (ahead - behind) / (2 * step)).abs()
        assert (off > 1e-4).double().mean() < 1e-4  # a corner of a square has none


def test_a_mistake_is_no_diversity():
    """What a prompt leaves open is kept, what it asks for is as asked, whatever was shown."""
    right = random_scene(12, torch.Generator().manual_seed(6))
    wrong = Scene((right.shape + 1) % 3, (right.colour + 2) % 4, (right.direction + 1) % 4, right.numbers)
    assert torch.equal(as_asked(wrong, right.prompts), render(right))


def test_kept_out_prompts_have_every_word_and_none_of_them_is_trained_on():
    kept = sorted(set(all_prompts()) - set(training_prompts()))
    assert len(kept) == 12
    assert all(kept_out(prompt) for prompt in kept)
    for names, times in ((SHAPES, 4), (COLOURS, 3), (DIRECTIONS, 3)):
        assert [sum(name in prompt.split() for prompt in kept) for name in names] == [times] * len(names)
