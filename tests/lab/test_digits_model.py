"""The generator of numbers, and that the transformer's arguments left the shapes as they were."""

import math

import pytest
import torch

from sage_grpo.config import ConfigError
from sage_grpo.core.protocols import Prompt
from sage_grpo.lab.digits.model import TextModel
from sage_grpo.lab.shapes.model import ShapesModel, ShapesTransformer


def before_the_arguments(m, x, sigma, tokens):
    """The pass as it was when sizes were constants of the module: 8 words, patches of 2×4×4, a grid of 4×4×4."""
    angles = sigma[:, None].float() * torch.exp(torch.linspace(0, math.log(1000), 32))
    modulation = m.noise(torch.cat([angles.sin(), angles.cos()], 1)).unflatten(1, (6, -1))
    b = len(x)
    cut = x.view(b, 3, 4, 2, 4, 4, 4, 4).permute(0, 2, 4, 6, 1, 3, 5, 7).flatten(4).flatten(1, 3)
    stream = torch.cat([m.words(tokens) + m.word_places, m.patches(cut) + m.places], 1)
    for block in m.blocks:
        stream = block(stream, modulation)
    pixels = m.out(m.norm(stream[:, 8:]))
    return pixels.view(b, 4, 4, 4, 3, 2, 4, 4).permute(0, 4, 1, 5, 2, 6, 3, 7).reshape(x.shape)


def test_shapes_are_bit_equal_to_what_they_were():
    model = ShapesModel.from_pretrained()
    assert model.latent_shape(Prompt("a red circle moving left")) == (3, 8, 16, 16)
    x, sigma = torch.randn(2, 3, 8, 16, 16), torch.tensor([0.3, 0.9])
    tokens = model.encode([Prompt("a red circle moving left")] * 2)["tokens"]
    assert torch.equal(model.module(x, sigma, tokens), before_the_arguments(model.module, x, sigma, tokens))


def test_fresh_weights_are_drawn_as_they_were():
    """The same seed gives the shapes' first weights in the same order: the base model can be made again."""
    torch.manual_seed(0)
    first = ShapesTransformer().words.weight
    torch.manual_seed(0)
    assert torch.equal(first, torch.nn.Embedding(15, 64).weight)


def test_a_clip_that_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="does not divide into patches"):
        ShapesTransformer(clip=(4, 18, 48))


def test_each_digit_is_a_token():
    model = TextModel()
    ids = model.encode([Prompt('the number "4821" in white'), Prompt("The number 4821 in WHITE")])["tokens"]
    assert torch.equal(ids[0], ids[1])
    assert model.tokenizer.decode(ids[0].tolist()) == "the number 4 8 2 1 in white"


def test_save_and_load_are_bit_equal(tmp_path):
    model = TextModel()
    model.save_pretrained(str(tmp_path))
    again = TextModel.from_pretrained(tmp_path)
    prompts = [Prompt('the number "4821" in green')]
    x = torch.randn(1, *model.latent_shape(prompts[0]))
    condition = model.encode(prompts)
    assert x.shape == (1, 3, 4, 16, 48)
    assert torch.equal(model.clean(x, torch.ones(1), condition), again.clean(x, torch.ones(1), again.encode(prompts)))


def test_a_folder_without_its_checkpoint_is_told(tmp_path):
    with pytest.raises(ConfigError, match="holds no checkpoint of the laboratory"):
        TextModel.from_pretrained(tmp_path)
    ShapesModel().save_pretrained(str(tmp_path))
    with pytest.raises(ConfigError, match="lab pretrain --world text"):
        TextModel.from_pretrained(tmp_path)
