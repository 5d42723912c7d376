"""Adapters that act at high noise alone (`tuning.min_sigma`): exact above, the base model below, refused in vain."""

import pytest

pytest.importorskip("diffusers")
pytest.importorskip("peft")

import torch
from rich.console import Console
from typer.testing import CliRunner

from sage_grpo.cli import app
from sage_grpo.config import ConfigError, load_recipe
from sage_grpo.core.rollout import velocity_at
from sage_grpo.evaluation.sources import find_sources
from sage_grpo.math.schedule import sigma_schedule
from sage_grpo.models import contract
from sage_grpo.models.wan import Wan22
from sage_grpo.preflight.rehearsal.run import rehearse
from sage_grpo.training.checks import check_noise_levels
from sage_grpo.training.trainer import Trainer
from sage_grpo.weights.prepare import make_bank, prepare
from tiny_models import disturb, tiny_model

RENOISED = ["sampling.eta=0", "sampling.shared_initial_noise=false"]
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
        ([*LORA, "tuning.min_sigma=0.5", "kl.outside_weight=0.01"], "both hold the noise levels that no step trains"),
        ([*LORA, "tuning.min_sigma=0.5", "tuning.compile=inductor"], "each switch would compile"),
        (
            [*LORA, "tuning.min_sigma=0.5", "policy.objective=awm", "policy.points=2", *RENOISED],
            "awm trains at all noise levels",
        ),
    ],
)
def test_refused_where_it_does_nothing_or_harm(overrides, said):
    with pytest.raises(ValueError, match=said):
        load_recipe("lab", overrides)


@pytest.mark.parametrize(
    ("steps", "shift", "window", "last"), [(8, 3, "[0, 0.45]", 2), (20, 5, "[0, 1]", 18), (7, 1, "[0.2, 0.6]", 3)]
)
def test_a_limit_above_the_lowest_trained_level_is_refused_before_the_run(steps, shift, window, last, tmp_path):
    settings = [f"sampling.steps={steps}", f"sampling.shift={shift}", f"sampling.window={{size: 1, range: {window}}}"]
    lowest = sigma_schedule(steps, shift)[last].item()
    check_noise_levels(load_recipe("lab", [*LORA, *settings, f"tuning.min_sigma={lowest}"]))
    above = [*LORA, *settings, f"tuning.min_sigma={lowest + 1e-4}", f"run.out={tmp_path}"]
    with pytest.raises(ConfigError, match=f"is trained, {lowest:.4f}; use .* or less") as refused:
        Trainer(config=load_recipe("lab", above))
    use = str(refused.value).split("use ")[1].split(" or")[0]
    check_noise_levels(load_recipe("lab", [*LORA, *settings, f"tuning.min_sigma={use}"]))
    assert CliRunner().invoke(app, ["train", "lab", *above, "--check"]).exit_code == 2


def test_a_model_that_is_prepared_again_has_the_new_limit():
    model = tiny_model(tuning={"mode": "lora", "min_sigma": 0.3})
    prepare(model, load_recipe({"tuning": {"mode": "lora", "rank": 4}}).tuning)
    disturb(model)
    assert model.min_sigma == 0
    assert not torch.equal(*velocities(model, 0.2), *velocities(tiny_model(tuning={"mode": "lora"}), 0.2))


def test_an_evaluation_knows_models_of_two_limits_apart(tmp_path):
    small = ["run.iterations=1", "policy.prompts_per_iteration=2", "policy.batch_size=16", "run.sample_every=0"]
    Trainer(config=load_recipe("lab", [*LORA, *small, f"run.out={tmp_path}", "run.trackers=[]"])).train()
    none, every, high, higher = (
        find_sources([str(tmp_path)], base=False, average=True, overrides=changed)[0].identity
        for changed in ([], ["tuning.min_sigma=0"], ["tuning.min_sigma=0.8"], ["tuning.min_sigma=0.85"])
    )
    assert none == every
    assert len({every, high, higher}) == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lab", "wan-1.3b-24gb-lora"])
def test_a_rehearsal_has_the_limit_too(name, tmp_path):
    window = "sampling.window={size: 1, range: [0, 0.3]}"
    limited = [*LORA, window, "tuning.min_sigma=0.88"]
    record = rehearse(name, limited, tmp_path / "rehearsal", Console(quiet=True), processes=1)
    assert any(text.startswith("min_sigma: 0.") and text.endswith("for 0.88") for text in record.reduced)
    assert ("export" in record.facts) == (name != "lab")
    assert any("min_sigma" in text for text in record.stand_ins) == (name == "lab")
