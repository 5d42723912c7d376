"""Tiny models of the real classes, prepared for training."""

import torch

from sage_grpo.config import load_recipe
from sage_grpo.core.rollout import keyed_noise, velocity_at
from sage_grpo.models import contract
from sage_grpo.models.hunyuan15 import HunyuanVideo15
from sage_grpo.weights.prepare import prepare, storage_dtypes


def tiny_model(adapter=HunyuanVideo15, tuning=None, folder=None, **settings):
    """Through save, load and prepare, as a recipe would."""
    config = load_recipe({"tuning": {"rank": 4, **(tuning or {})}}).tuning
    kinds, path = storage_dtypes(config), str(folder) if folder else None
    if path is None:
        frames, height, width = adapter.tiny_size
        sizes = {"frames": frames, "height": height, "width": width, "guidance_scale": 3.0, "negative_prompt": "blurry"}
        pipe = adapter.tiny()
        if kinds["dtype"] != torch.float32:
            pipe.to(kinds["dtype"])
        model = adapter(pipe, **(sizes | dict(adapter.tiny_options) | settings))
    else:
        model = contract.load(adapter, path, **kinds, **settings)
    prepare(model, config)
    return model


def disturb(model, size=0.05):
    """Some progress of the training, so that policy and base differ."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        for parameter in model.module.parameters():
            if parameter.requires_grad:
                parameter.add_(size * torch.randn_like(parameter))
    return model


def prepared_velocity(model, sigma=0.7):
    prompts = contract.prompts_for(model)[:1]
    x = keyed_noise(model.latent_shape(prompts[0]), [("tuning", 0)], model.device)
    condition = model.encode(prompts)
    return lambda: velocity_at(model, x, sigma, condition)


def one_velocity(model, sigma=0.7):
    return prepared_velocity(model, sigma)()
