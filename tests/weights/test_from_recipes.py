"""Settings of a recipe as a model takes them: names, guidance, precision of what is trained and what is not."""

import pytest

pytest.importorskip("diffusers")
pytest.importorskip("peft")

import torch

from sage_grpo.config import ConfigError, load_recipe
from sage_grpo.core.protocols import Prompt
from sage_grpo.models import contract
from sage_grpo.models.hunyuan15 import HunyuanVideo15
from sage_grpo.models.wan import Wan, Wan22
from tiny_models import disturb, one_velocity, tiny_model

pytestmark = pytest.mark.slow


def test_guidance_gradient_through_both_branches_or_one():
    found = {}
    for gradient in ("both", "conditional"):
        model = tiny_model(Wan, guidance_gradient=gradient)
        one_velocity(model).square().mean().backward()
        found[gradient] = torch.cat([p.grad.flatten() for p in model.module.parameters() if p.grad is not None])
    model = tiny_model(Wan, {"guidance": "one-by-one"})
    inner, calls = model.predict, []

    def second_detached(*args):
        calls.append(None)
        out = inner(*args)
        return out if len(calls) == 1 else out.detach()

    model.predict = second_detached
    one_velocity(model).square().mean().backward()
    expected = torch.cat([p.grad.flatten() for p in model.module.parameters() if p.grad is not None])
    assert torch.equal(found["conditional"], expected)
    assert not torch.equal(found["conditional"], found["both"])


def test_recipe_settings_reach_the_model_and_mistakes_are_named(tmp_path):
    from sage_grpo.training.build import build_model

    path = contract.make_checkpoint(Wan, tmp_path / "wan")
    sizes = {"frames": 5, "height": 16, "width": 16}
    recipe = {
        "model": {"type": "wan", "path": path, "guidance_scale": 2.0, **sizes, "options": {"text_tokens": 24}},
        "tuning": {"mode": "lora", "rank": 2, "offload": True, "conditions": str(tmp_path / "c")},
    }
    model = build_model(load_recipe(recipe))
    assert (model.frames, model.guidance_scale, model.text_tokens) == (5, 2.0, 24)
    assert str(model.conditions.folder) == str(tmp_path / "c")
    for change, message in (
        ({"options": {"text_token": 3}}, "model.text_token: wan has no such setting; did you mean 'text_tokens'"),
        ({"path": None}, "model.path: wan needs a checkpoint"),
        ({"type": "wam"}, "did you mean 'wan'"),
    ):
        wrong = {**recipe, "model": {**recipe["model"], **change}}
        with pytest.raises(ConfigError, match=message):
            build_model(load_recipe(wrong))
    with pytest.raises(ConfigError, match=r"model\.frames: shapes has no such setting"):
        build_model(load_recipe({"model": {"frames": 8}}))


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("adapter", [HunyuanVideo15, Wan22])
def test_branches_of_guidance_one_after_the_other(adapter, checkpointing):
    """The same velocity and the same gradients, without the gradients of one waiting for the other."""
    tuning = {"mode": "full", "gradient_checkpointing": checkpointing, "guidance": "one-by-one"}
    model = disturb(tiny_model(adapter, tuning))
    assert model.branches_in_turn
    assert not model.branches_together
    condition = model.encode(contract.prompts_for(model))
    x = torch.randn(2, *model.latent_shape(Prompt("")))
    found = []
    for model.branches_in_turn in (False, True):
        model.module.zero_grad(set_to_none=True)
        v = model.velocity(x, torch.tensor([0.95, 0.4]), condition)
        v.square().sum().backward()
        found.append((v, {n: p.grad for n, p in model.module.named_parameters() if p.grad is not None}))
    (v, gradients), (other, others) = found
    assert torch.equal(v, other)
    assert gradients.keys() == others.keys()
    assert all(torch.allclose(gradients[n], others[n], rtol=1e-5, atol=1e-7) for n in gradients)


@pytest.mark.parametrize(
    ("kind", "adapter", "vae"), [("wan", Wan, torch.float32), ("hunyuan15", HunyuanVideo15, torch.bfloat16)]
)
def test_only_what_is_trained_is_float32(kind, adapter, vae, tmp_path):
    """With all weights trained, encoders and decoder have the precision of the recipe; the plan counts the same."""
    from sage_grpo.training.build import build_model, outline_model

    path, (frames, height, width) = contract.make_checkpoint(adapter, tmp_path / kind), adapter.tiny_size
    size = {"frames": frames, "height": height, "width": width, "guidance_scale": 3.0}
    recipe = {
        "model": {"type": kind, "path": path, **size, "options": dict(adapter.tiny_options)},
        "tuning": {"mode": "full", "precision": "bfloat16", "conditions": str(tmp_path / "c")},
    }
    model, outline = build_model(load_recipe(recipe)), outline_model(load_recipe(recipe))
    encoders = [name for name in adapter.encoders if hasattr(model.pipe, name)]
    expected = dict.fromkeys(encoders, torch.bfloat16) | {"transformer": torch.float32, "vae": vae}
    for name, dtype in expected.items():
        loaded, planned = getattr(model.pipe, name), getattr(outline.pipe, name)
        assert loaded.dtype == planned.dtype == dtype, name
    assert {p.dtype for p in model.module.parameters()} == {torch.float32}
    prompt = contract.prompts_for(model)[0]
    condition, x = model.encode([prompt]), torch.randn(1, *model.latent_shape(prompt))
    assert model.velocity(x, torch.tensor([0.5]), condition).isfinite().all()
    assert len(model.decode(x)) == 1
