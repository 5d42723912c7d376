"""The generator of numbers: its tokens, its checkpoint, and which checkpoints it refuses."""

import pytest
import torch

from sage_grpo.config import ConfigError, load_recipe
from sage_grpo.core.protocols import Prompt
from sage_grpo.lab.digits.model import TextModel
from sage_grpo.lab.digits.world import fresh_prompts, parse_prompt
from sage_grpo.lab.shapes.model import ShapesModel
from sage_grpo.training.build import build_prompts


def test_training_is_given_its_own_prompts():
    """Each asks for a number, none of which is held out."""
    asked = [prompt.text for prompt in build_prompts(load_recipe("text"))(0, 50)]
    assert len({tuple(parse_prompt(prompt)[0]) for prompt in asked}) == 50
    assert set(asked) <= set(TextModel.own_prompts())
    held_out = {tuple(parse_prompt(prompt)[0]) for prompt in fresh_prompts(1000)}
    assert held_out.isdisjoint(tuple(parse_prompt(prompt)[0]) for prompt in TextModel.own_prompts())


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
    assert x.shape == (1, 16, 1, 3, 9)
    assert torch.equal(model.clean(x, torch.ones(1), condition), again.clean(x, torch.ones(1), again.encode(prompts)))


def test_a_folder_without_its_checkpoint_is_told(tmp_path):
    with pytest.raises(ConfigError, match="holds no checkpoint of the laboratory"):
        TextModel.from_pretrained(tmp_path)
    ShapesModel().save_pretrained(str(tmp_path))
    with pytest.raises(ConfigError, match="lab pretrain --world text"):
        TextModel.from_pretrained(tmp_path)
