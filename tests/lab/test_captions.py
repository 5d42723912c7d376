"""Captions of pre-training: as often wrong and empty as they say, and in one word at a time."""

import math

import pytest
import torch

from sage_grpo.lab.captions import EMPTY, mistaken, some_empty
from sage_grpo.lab.shapes import world as shapes


def test_a_share_is_moved_to_the_other_kinds_alike():
    right = torch.full((40_000,), 2)
    told = mistaken(right, 4, 0.16, torch.Generator().manual_seed(0))
    shares = torch.bincount(told, minlength=4) / len(told)
    wanted = torch.tensor([0.16 / 3, 0.16 / 3, 0.84, 0.16 / 3])
    assert ((shares - wanted).abs() < 4 * (wanted * (1 - wanted) / len(told)).sqrt()).all()


def test_some_captions_are_empty_and_the_rest_as_they_were():
    captions = [f"caption {i}" for i in range(10_000)]
    found = some_empty(captions, torch.Generator().manual_seed(0))
    missing = sum(caption == "" for caption in found) / len(found)
    assert missing == pytest.approx(EMPTY, abs=4 * math.sqrt(EMPTY * (1 - EMPTY) / len(found)))
    assert all(new in ("", old) for new, old in zip(found, captions, strict=True))


def test_captions_of_shapes_follow_their_clips_as_often_as_the_base_can_follow_them():
    """A model that learned these captions perfectly would follow this share of its prompts."""
    scene = shapes.random_scene(20_000, torch.Generator().manual_seed(0))
    told = shapes.captions(scene, torch.Generator().manual_seed(1))
    pairs = [(a, b) for a, b in zip(told, scene.prompts, strict=True) if a]
    right = sum(a == b for a, b in pairs) / len(pairs)
    wanted = (1 - shapes.CAPTION_ERRORS) ** 3
    assert right == pytest.approx(wanted, abs=4 * math.sqrt(wanted * (1 - wanted) / len(pairs)))
