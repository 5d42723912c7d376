"""The world of numbers: a tenth is held out, true renderings are read, and the distance to them is exact."""

import pytest

pytest.importorskip("rapidocr_onnxruntime")

import torch

from sage_grpo.core.protocols import Prompt
from sage_grpo.lab.clips import as_frames
from sage_grpo.lab.digits import world as text
from sage_grpo.rewards.ocr import OCRReward, wanted_text


@pytest.fixture(scope="module")
def real():
    scene = text.random_scene(48, torch.Generator().manual_seed(0))
    return scene, text.render(scene)


def test_held_out_numbers_are_a_tenth_and_balanced():
    fresh, seen = text.numbers(fresh=True), text.numbers(fresh=False)
    assert (len(fresh), len(seen)) == (1000, 9000)
    for place in fresh.T:
        assert torch.equal(place.bincount(), torch.full((10,), 100))


def test_no_training_sees_a_held_out_number():
    scene = text.random_scene(5000, torch.Generator().manual_seed(1))
    assert not text.held_out(scene.digits).any()
    fresh = {wanted_text(Prompt(t)) for t in text.fresh_prompts(1000)}
    assert len(fresh) == 1000
    assert fresh.isdisjoint(wanted_text(Prompt(t)) for t in text.training_prompts())


def test_prompts_are_read_back(real):
    scene, _ = real
    for prompt, digits, colour in zip(scene.prompts, scene.digits.tolist(), scene.colour.tolist(), strict=True):
        assert text.parse_prompt(prompt) == (digits, colour)
    for wrong in ('the number "12345" in white', 'the number "1234" in blue'):
        with pytest.raises(ValueError, match="needs a number of 4 digits and one of white, yellow"):
            text.parse_prompt(wrong)


@pytest.mark.slow
def test_ocr_reads_true_renderings(real):
    """What is missing from 1 in a model's accuracy is the model's."""
    scene, clips = real
    prompts = [Prompt(t) for t in scene.prompts]
    scores = OCRReward(frames=1, detect=False).score(as_frames(clips), prompts)
    assert scores.valid.all()
    assert (scores.values == 1).double().mean() >= 0.97


@pytest.mark.slow
def test_true_renderings_have_distance_zero_and_are_read_back(real):
    scene, clips = real
    found = text.fit(clips, scene.prompts)
    assert found.distance.max() < 1e-4
    assert torch.equal(found.digits, scene.digits)
    assert torch.equal(found.colour, scene.colour)
    assert found.tint.max() < 1e-3
    torch.testing.assert_close(found.numbers, scene.numbers, rtol=0, atol=1e-3)


@pytest.mark.slow
def test_noise_moves_a_clip_by_itself_and_leaves_it_legible(real):
    scene, clips = real
    half_off = 0.2 * torch.randn(clips.shape, generator=torch.Generator().manual_seed(2))
    found = text.fit((clips + half_off).clamp(-1, 1), scene.prompts)
    added = ((clips + half_off).clamp(-1, 1) - clips).flatten(1).norm(dim=1) / (clips + 1).flatten(1).norm(dim=1)
    torch.testing.assert_close(found.distance, added, rtol=0.05, atol=0)
    assert torch.equal(found.digits, scene.digits)


@pytest.mark.slow
def test_a_wrong_digit_is_seen_by_the_second_reader_and_is_far(real):
    """The reader looks at the video: what the prompt asks for does not sway it."""
    scene, clips = real
    asked = scene.digits.clone()
    asked[:, 2] = (asked[:, 2] + 3) % 10
    found = text.fit(clips, text.Scene(asked, scene.colour, scene.numbers).prompts)
    assert (found.digits == scene.digits).all(1).double().mean() > 0.95
    assert found.distance.min() > 0.1


@pytest.mark.slow
def test_a_mistake_is_no_diversity(real):
    """What a prompt leaves open is kept, what it asks for is as asked, whatever was shown."""
    scene, clips = real
    asked = scene.digits.clone()
    asked[:, 1] = (asked[:, 1] + 5) % 10
    prompts = text.Scene(asked, scene.colour, scene.numbers).prompts
    found = text.as_asked(text.fit(clips, prompts), prompts)
    off = (found - text.render(text.Scene(asked, scene.colour, scene.numbers))).square().mean().sqrt()
    other = (clips - clips.roll(1, 0)).square().mean().sqrt()
    assert off < 0.25 * other


@pytest.mark.slow
def test_a_wrong_hue_is_seen_before_it_is_another_colour(real):
    scene, clips = real
    shifted = clips.clone()
    shifted[:, 2] = ((clips[:, 2] + 1) * 0.8) - 1  # a fifth of the blue light is gone
    found = text.fit(shifted, scene.prompts)
    assert torch.equal(found.colour, scene.colour)
    blue = (text.PALETTE[:, 2] / text.PALETTE.amax(1))[scene.colour]
    torch.testing.assert_close(found.tint, 0.2 * blue, rtol=0.02, atol=1e-3)
