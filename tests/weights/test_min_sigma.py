"""Adapters that act at high noise alone (`tuning.min_sigma`): exact above, the base model below, refused in vain."""

import pytest

pytest.importorskip("diffusers")
pytest.importorskip("peft")

import torch

from sage_grpo.config import load_recipe
from sage_grpo.core.rollout import velocity_at
from sage_grpo.math.schedule import sigma_schedule
from sage_grpo.models import contract
from sage_grpo.models.wan import Wan22
from sage_grpo.weights.prepare import make_bank
from tiny_models import disturb, tiny_model

LORA = ["tuning.mode=lora", "kl.outside_weight=0"]


def velocities(model, *sigmas):
    prompts = contract.prompts_for(model)[:1]
    x = torch.randn(1, *model.latent_shape(prompts[0]), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return [velocity_at(model, x, sigma, model.encode(prompts)) for sigma in sigmas]


def test_adapters_act_above_and_the_base_below():
    limited, free = (tiny_model(tuning={"mode": "lora", "min_sigma": s}) for s in (0.3, 0.0))
    base = velocities(free, 0.3, 0.29)
    for model in (limited, free):
        disturb(model)
    got, everywhere = velocities(limited, 0.3, 0.29), velocities(free, 0.3, 0.29)
    assert torch.equal(got[0], everywhere[0])
    assert torch.equal(got[1], base[1])
    assert not torch.equal(everywhere[1], base[1])


def test_copies_are_limited_like_the_policy_and_nothing_is_frozen():
    model = tiny_model(tuning={"mode": "lora", "min_sigma": 0.3})
    bank = make_bank(model.module)
    base = velocities(model, 0.9, 0.2)
    bank.save("initial")
    disturb(model)
    bank.save("anchor")
    trained = {name for name, p in model.module.named_parameters() if p.requires_grad}
    policy = velocities(model, 0.9, 0.2)
    with bank.using("anchor"):
        assert all(torch.equal(a, b) for a, b in zip(velocities(model, 0.9, 0.2), policy, strict=True))
    with bank.using("initial"):
        inside = velocities(model, 0.2, 0.9)  # a switch below the limit must not switch the adapter on afterwards
        assert all(torch.equal(a, b) for a, b in zip(inside, reversed(base), strict=True))
    assert torch.equal(policy[1], base[1])
    assert trained == {name for name, p in model.module.named_parameters() if p.requires_grad}


def test_gradients_above_are_those_of_adapters_without_a_limit():
    found = []
    for s in (0.3, 0.0):
        model = tiny_model(Wan22, {"mode": "lora", "min_sigma": s})
        disturb(model)
        prompts = contract.prompts_for(model)[:1]
        x = torch.randn(1, *model.latent_shape(prompts[0]), generator=torch.Generator().manual_seed(0))
        velocity_at(model, x, 0.95, model.encode(prompts)).square().mean().backward()
        found.append({name: p.grad for name, p in model.module.named_parameters() if p.grad is not None})
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["tuning.min_sigma=0.5"], "set mode=lora or min_sigma=0"),
        ([*LORA, "tuning.min_sigma=0.95"], r"lowest noise level that is trained, 0\.9000; use 0\.9 or less"),
        ([*LORA, "tuning.min_sigma=0.5", "kl.outside_weight=0.01"], "two cures of one drift"),
        ([*LORA, "tuning.min_sigma=0.5", "tuning.compile=inductor"], "each switch would compile"),
        (
            [
                *LORA,
                "tuning.min_sigma=0.5",
                "policy.objective=awm",
                "policy.points=2",
                "sampling.eta=0",
                "sampling.shared_initial_noise=false",
            ],
            "trains at all noise levels",
        ),
    ],
)
def test_refused_where_it_does_nothing_or_harm(overrides, said):
    with pytest.raises(ValueError, match=said):
        load_recipe("lab", overrides)


@pytest.mark.parametrize(
    ("steps", "shift", "window"), [(8, 3.0, "[0, 0.45]"), (20, 5.0, "[0, 1]"), (7, 1.0, "[0.2, 0.6]")]
)
def test_the_lowest_trained_level_is_that_of_the_schedule(steps, shift, window):
    config = load_recipe(
        "lab", [f"sampling.steps={steps}", f"sampling.shift={shift}", f"sampling.window={{size: 1, range: {window}}}"]
    )
    trained = [n for n in range(steps) if n not in config.sampling.untrained_steps]
    assert config.sampling.lowest_trained_sigma == pytest.approx(sigma_schedule(steps, shift)[trained].min().item())
