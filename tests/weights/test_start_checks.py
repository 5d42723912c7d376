"""A run that would not train, or whose ratio is not 1, refuses to start and says why. Each fault is planted."""

import dataclasses

import pytest

pytest.importorskip("diffusers")
pytest.importorskip("peft")

import torch

from sage_grpo.core import checks
from sage_grpo.core.checks import ReplayError, SilentTraining, check_replay
from sage_grpo.math import gaussian
from sage_grpo.math.objectives.grpo import Grpo
from sage_grpo.models import contract
from sage_grpo.models.base import DiffusersModel
from sage_grpo.models.hunyuan15 import HunyuanVideo15
from sage_grpo.models.wan import Wan, Wan22
from sage_grpo.weights.lora_bank import lora_layers
from sage_grpo.weights.parts import TuningError
from sage_grpo.weights.prepare import make_bank
from support import make_config, make_loop
from tiny_models import disturb, tiny_model

pytestmark = pytest.mark.slow


def loop_for(model, policy=None, **settings):
    prompts = contract.prompts_for(model)
    policy = {"prompts_per_iteration": 2, "num_generations": 2, "batch_size": 2} | (policy or {})
    config = make_config(policy=policy, sampling={"steps": 4}, **settings)
    bank = make_bank(model.module)
    return make_loop(config, model=model, prompts=lambda start, count: (prompts * count)[:count], bank=bank)


def rollout_of(model):
    loop, _ = loop_for(model)
    return loop, loop.rollout().trajectories


@pytest.mark.parametrize("mode", ["lora", "full"])
@pytest.mark.parametrize("adapter", contract.adapters(), ids=lambda a: a.__name__)
def test_replay_is_exact_for_every_adapter(adapter, mode):
    """Rollout without and replay with gradients give the same bits in fp32, and a gradient reaches everything."""
    model = disturb(tiny_model(adapter, {"mode": mode}), 0.02)
    loop, seen = loop_for(model)
    loop.iterate()
    assert set(seen.updates[0].per_step["ratio"]) == {1.0}
    assert seen.updates[0].stepped


def test_gate_names_dropout():
    model = disturb(tiny_model(Wan))
    model.module.blocks[0].ffn.net[1].p = 0.5
    model.module.train()
    loop, _ = loop_for(model)
    with pytest.raises(ReplayError, match=r"answers differently each time: switch off dropout.*blocks\.0\.ffn\.net\.1"):
        loop.iterate()


def test_gate_names_another_mode():
    model = disturb(tiny_model(Wan))
    model.module.blocks[0].ffn.net[1].p = 0.5
    _loop, trajectories = rollout_of(model)
    model.module.train()
    with pytest.raises(ReplayError, match="mode was eval in the rollout and is train in the replay"):
        check_replay(model, trajectories[0])


def test_gate_names_another_dtype():
    model = disturb(tiny_model(Wan))
    _loop, trajectories = rollout_of(model)
    model.autocast_dtype = torch.bfloat16
    with pytest.raises(ReplayError, match=r"autocast_dtype was None in the rollout and is torch\.bfloat16"):
        check_replay(model, trajectories[0])


def test_gate_names_other_weights_dtype():
    model = disturb(tiny_model(Wan, guidance_scale=1.0))
    _loop, trajectories = rollout_of(model)
    model.module.to(torch.float64)
    trajectory = trajectories[0]
    double = {k: v.double() if v.is_floating_point() else v for k, v in trajectory.condition.items()}
    with pytest.raises(ReplayError, match=r"dtype was torch\.float32, weights torch\.float32.*weights torch\.float64"):
        check_replay(model, dataclasses.replace(trajectory, condition=double))


class PicksKernelsBySize(Wan):
    """As on accelerators, where another batch size means other kernels and other rounding."""

    def predict(self, x, sigma, inputs):
        return super().predict(x, sigma, inputs) * (1 + 1e-6 * len(x))


def joined(first, second):
    def cat(one, other, names):
        return {name: torch.cat([one[name], other[name]]) for name in names}

    names = ("x", "velocity", "noise")
    points = {
        t: dataclasses.replace(point, **cat(vars(point), vars(second.points[t]), names))
        for t, point in first.points.items()
    }
    condition = cat(first.condition, second.condition, first.condition)
    return dataclasses.replace(first, condition=condition, points=points, x0=torch.cat([first.x0, second.x0]))


def test_gate_names_another_batch_shape():
    model = disturb(tiny_model(PicksKernelsBySize))
    _loop, (first, second) = rollout_of(model)
    check_replay(model, first)
    with pytest.raises(ReplayError, match=r"batch shape was \(2, 4.* in the rollout and is \(4, 4"):
        check_replay(model, joined(first, second))


def test_gate_takes_rounding_where_a_rollout_serves_one_update_and_nothing_more():
    model = disturb(tiny_model(PicksKernelsBySize))
    _loop, (first, _) = rollout_of(model)
    assert 0 < check_replay(model, first, together=2, exact=False) < 1e-5
    with pytest.raises(ReplayError, match=r"exactly 0.*this is rounding.*policy\.num_iterations=1"):
        check_replay(model, first, together=2)
    model.guidance_scale = 3.1
    with pytest.raises(ReplayError, match="guidance_scale was 3"):
        check_replay(model, first, together=2, exact=False)


class RoundsWithGradient(Wan):
    """As compilers and cuDNN do: other kernels, where there is something to differentiate."""

    off = 0.0

    def predict(self, x, sigma, inputs):
        v = super().predict(x, sigma, inputs)
        return v * (1 + self.off * torch.randn_like(v)) if torch.is_grad_enabled() else v


@pytest.mark.parametrize(("dtype", "rounding"), [("float32", 1e-6), ("bfloat16", 4e-3)])
def test_one_update_of_a_rollout_bears_rounding(dtype, rounding):
    """Ratio 1 and no pull to the previous policy by construction; what is above rounding is refused all the same."""
    for off, policy, message in (
        (rounding, {}, None),
        (rounding, {"num_iterations": 2}, r"exactly 0"),
        (30 * rounding, {}, r"moves the velocity by 0\.\d+ of its size; it must be within|moves the velocity by .*e-"),
    ):
        model = disturb(tiny_model(RoundsWithGradient, {"precision": dtype}))
        model.off = off
        loop, seen = loop_for(model, policy=policy)
        if message:
            with pytest.raises(ReplayError, match=message):
                loop.iterate()
            continue
        metrics = loop.iterate()
        assert 0 < metrics["replay_deviation"] < 20 * rounding
        assert set(seen.updates[0].per_step["ratio"]) == {1.0}
        assert set(seen.updates[0].per_step["kl_old"]) == {0.0}
        assert seen.updates[0].stepped
        assert "replay_deviation" not in loop.iterate()


def test_gate_names_other_guidance():
    model = disturb(tiny_model(Wan))
    _loop, trajectories = rollout_of(model)
    model.guidance_scale = 1.0
    with pytest.raises(ReplayError, match=r"guidance_scale was 3\.0 in the rollout and is 1\.0 in the replay"):
        check_replay(model, trajectories[0])


def test_a_refused_run_has_scored_and_trained_nothing():
    model = disturb(tiny_model(Wan))
    model.module.blocks[0].ffn.net[1].p = 0.5
    model.module.train()
    loop, seen = loop_for(model)
    with pytest.raises(ReplayError):
        loop.run(1)
    assert not seen.scores
    assert not seen.updates


# -- silent non-training


def refused(model, **settings):
    loop, seen = loop_for(model, **settings)
    with pytest.raises(SilentTraining) as error:
        loop.iterate()
    assert not seen.updates
    return str(error.value)


def test_sound_model_is_not_refused():
    for mode in ("lora", "full"):
        loop, seen = loop_for(tiny_model(HunyuanVideo15, {"mode": mode}))
        loop.iterate()
        assert seen.updates


def test_everything_frozen():
    model = tiny_model(Wan)
    model.module.requires_grad_(False)
    assert "nothing is trained" in str(refused_without_optimizer(model))


def refused_without_optimizer(model):
    with pytest.raises(SilentTraining) as error:
        checks.check_training(model, rollout_of_frozen(model), Grpo(), make_config())
    return error.value


def rollout_of_frozen(model):
    model.module.requires_grad_(True)
    _, trajectories = rollout_of(model)
    model.module.requires_grad_(False)
    return trajectories[0]


def test_frozen_adapter_in_one_block():
    model = tiny_model(Wan, {"mode": "lora"})
    for layer in lora_layers(model.module.blocks[1]):
        layer.requires_grad_(False)
    message = refused(model)
    assert "blocks.1 does not train what the other 1 blocks do" in message
    assert "lora_A" in message


def test_one_frozen_adapter_layer():
    model = tiny_model(Wan, {"mode": "lora"})
    model.module.blocks[0].attn1.to_q.lora_B.requires_grad_(False)
    assert "blocks.0 does not train what the other 1 blocks do: attn1.to_q.lora_B.default.weight" in refused(model)


def test_block_without_adapters():
    model = tiny_model(Wan, {"mode": "lora"})
    plain = tiny_model(Wan).module.blocks[1].requires_grad_(False)
    model.module.blocks[1] = plain
    assert "blocks.1 does not train what the other 1 blocks do" in refused(model)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (["to_q", "to_kk"], r"no layer of the model is called 'to_kk'; did you mean '\w*to_k"),
        (["attention.query"], "no layer of the model is called 'attention.query'"),
    ],
)
def test_wrong_target_name(targets, message):
    with pytest.raises(TuningError, match=message):
        tiny_model(Wan, {"mode": "lora", "targets": targets})


def test_a_model_without_targets_of_its_own(monkeypatch):
    monkeypatch.setattr(Wan, "lora_targets", ())
    with pytest.raises(TuningError, match=r"has no default layers for LoRA; choose from its own: .*to_k"):
        tiny_model(Wan, {"mode": "lora"})


@pytest.mark.parametrize(
    ("place", "name", "expected"),
    [
        ("core.update", "kl", "the KL to the anchor has no gradient"),
        ("math.objectives", "log_ratio", "the policy loss has no gradient"),
    ],
)
def test_detached_term(monkeypatch, place, name, expected):
    inner = getattr(gaussian, name)
    monkeypatch.setattr(f"sage_grpo.{place}.{name}", lambda *args: inner(*args).detach())
    assert expected in refused(tiny_model(Wan, {"mode": "lora"}))


def test_kl_under_no_grad(monkeypatch):
    inner = gaussian.kl
    monkeypatch.setattr("sage_grpo.core.update.kl", torch.no_grad()(inner))
    assert "computed under no_grad or from a detached velocity" in refused(tiny_model(Wan, {"mode": "lora"}))


def test_velocity_without_gradient(monkeypatch):
    inner = DiffusersModel.velocity
    monkeypatch.setattr(DiffusersModel, "velocity", torch.no_grad()(inner))
    assert "the velocity has no gradient" in refused(tiny_model(Wan))


def test_parameter_that_nobody_reads():
    model = tiny_model(Wan)
    model.module.register_parameter("forgotten", torch.nn.Parameter(torch.zeros(3)))
    message = refused(model)
    assert "1 of" in message
    assert "forgotten" in message


def test_expert_that_the_schedule_never_reaches():
    """A boundary below the last noise level leaves the second expert idle."""
    model = tiny_model(Wan22, {"mode": "lora"})
    model.pipe.register_to_config(boundary_ratio=0.01)
    assert "transformer_2.blocks.0" in refused(model)


def test_no_kl_needs_no_kl_gradient(monkeypatch):
    inner = gaussian.kl
    monkeypatch.setattr("sage_grpo.core.update.kl", torch.no_grad()(inner))
    loop, seen = loop_for(tiny_model(Wan), kl={"anchor": "none", "high": 0.0, "low": 0.0})
    loop.iterate()
    assert seen.updates
