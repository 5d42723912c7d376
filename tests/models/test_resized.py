"""Sample videos of another size than those of training: made as by a model that has this size from the start."""

import pytest

pytest.importorskip("diffusers")

import torch

from sage_grpo.config import load_recipe
from sage_grpo.core.protocols import Prompt
from sage_grpo.core.sampler import generate
from sage_grpo.errors import UserError
from sage_grpo.models import contract
from sage_grpo.models.hunyuan15 import HunyuanVideo15
from sage_grpo.models.wan import Wan
from tiny_models import tiny_model

ADAPTERS = [
    pytest.param(adapter, marks=[] if adapter in (HunyuanVideo15, Wan) else pytest.mark.slow)
    for adapter in contract.adapters()
]


def size_of(model):
    return {"frames": model.frames, "height": model.height, "width": model.width}


def rendered(model, config):
    """Frames of two prompts at fixed seeds."""
    return model.render(generate(model, contract.prompts_for(model)[:2], config, [3, 4])).frames


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda a: a.__name__)
def test_resized_equals_a_model_of_that_size(adapter, checkpoint):
    config = load_recipe({"sampling": {"steps": 2}})
    frames, height, width = adapter.tiny_size
    larger = {"height": 2 * height, "width": 2 * width} | ({"frames": 2 * frames - 1} if frames > 1 else {})
    model = tiny_model(adapter, folder=checkpoint(adapter))
    before, first = size_of(model), rendered(model, config)
    with model.resized(**larger):
        ours = rendered(model, config)
    assert ours.shape[2:4] == (2 * height, 2 * width)
    assert torch.equal(ours, rendered(tiny_model(adapter, folder=checkpoint(adapter), **larger), config))
    assert size_of(model) == before
    assert torch.equal(rendered(model, config), first)


def test_a_size_that_cannot_be_leaves_the_model_as_it_was():
    model = tiny_model(HunyuanVideo15)
    before = size_of(model)
    with pytest.raises(UserError, match="must be a multiple of"), model.resized(height=before["height"] + 1):
        pass
    assert size_of(model) == before
    with model.resized():
        assert model.latent_shape(Prompt("")) == tiny_model(HunyuanVideo15).latent_shape(Prompt(""))
