"""Clips in patches and as bytes, and back."""

import pytest
import torch

from sage_grpo.lab.autoencoder import Autoencoder
from sage_grpo.lab.clips import as_clips, as_frames, cut, join


@pytest.mark.parametrize("patch", [(1, 1, 1), (8, 8, 8), (4, 8, 16), (8, 2, 4)])
def test_patches_are_put_back_where_they_were(patch):
    clips = torch.randn(2, 3, 8, 16, 32)
    rows = cut(clips, patch)
    assert torch.equal(join(rows, clips.shape[2:], patch), clips)
    first = clips[:, :, : patch[0], : patch[1], : patch[2]]
    assert torch.equal(rows[:, 0], first.flatten(1))  # a row is one patch, channels first


def test_a_clip_that_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="does not divide into patches"):
        Autoencoder(clip=(4, 18, 48), patch=(4, 4, 4))


def test_bytes_keep_a_clip_to_half_a_step():
    clips = 2 * torch.rand(2, 3, 4, 8, 8) - 1
    frames = as_frames(clips)
    assert frames.dtype == torch.uint8
    assert frames.shape == (2, 4, 8, 8, 3)
    assert (as_clips(frames) - clips).abs().max() <= 0.5 / 127.5 + 1e-6


def test_latents_of_the_world_have_mean_0_and_deviation_1():
    torch.manual_seed(0)
    network, clips = Autoencoder((4, 8, 8), (4, 4, 4), width=16, depth=1, heads=2), torch.rand(64, 3, 4, 8, 8)
    before = network.decode(network.encode(clips))
    network.standardize(clips)
    latents = network.encode(clips)
    assert latents.shape[1:] == network.latent_shape == (8, 1, 2, 2)
    torch.testing.assert_close(latents.mean((0, 2, 3, 4)), torch.zeros(8), atol=1e-5, rtol=0)
    torch.testing.assert_close(latents.std((0, 2, 3, 4)), torch.ones(8), atol=1e-4, rtol=0)
    torch.testing.assert_close(network.decode(latents), before)  # the same clips come back
