"""Ways of training: adapters, full weights, precision, recomputation, optimizers, compilation."""

import copy

import pytest

pytest.importorskip("diffusers")
pytest.importorskip("peft")

import torch

from memory import PeakMemory
from sage_grpo.config import OptimizerConfig, load_recipe
from sage_grpo.core.anchor import ANCHOR
from sage_grpo.core.copy_bank import CopyBank
from sage_grpo.core.update import update
from sage_grpo.lab.shapes.model import ShapesModel
from sage_grpo.models import contract
from sage_grpo.models.hunyuan15 import HunyuanVideo15
from sage_grpo.models.wan import Wan, Wan22
from sage_grpo.weights.lora_bank import LoraBank, lora_layers
from sage_grpo.weights.optimizers import build_optimizer
from sage_grpo.weights.parts import TuningError
from sage_grpo.weights.prepare import make_bank, prepare
from support import make_config, make_loop, objective_config, weights
from sweeps import further
from tiny_models import disturb, one_velocity, prepared_velocity, tiny_model

pytestmark = pytest.mark.slow


def numbered_loop(model, **settings):
    prompts = contract.prompts_for(model)
    policy = {"prompts_per_iteration": 2, "num_generations": 2, "batch_size": 2, **settings.pop("policy", {})}
    config = make_config(policy=policy, sampling={"steps": 4}, **settings)
    bank = make_bank(model.module)
    return make_loop(config, model=model, prompts=lambda start, count: (prompts * count)[:count], bank=bank)


@pytest.mark.parametrize("adapter", contract.adapters(), ids=lambda a: a.__name__)
def test_lora_starts_as_the_base_and_trains_only_adapters(adapter):
    base = tiny_model(adapter, {"mode": "full"})
    model = tiny_model(adapter, {"mode": "lora"})
    with torch.no_grad():
        assert torch.equal(one_velocity(base), one_velocity(model))
    trained = [name for name, p in model.module.named_parameters() if p.requires_grad]
    assert trained
    assert all(".lora_" in name for name in trained)
    for sigma in (0.95, 0.2):
        one_velocity(model, sigma).square().mean().backward()
    assert all(p.grad is not None for p in model.module.parameters() if p.requires_grad)
    assert all(p.grad is None for p in model.module.parameters() if not p.requires_grad)


def test_base_policy_is_the_adapter_switched_off():
    model = tiny_model(tuning={"mode": "lora"})
    bank = make_bank(model.module)
    with torch.no_grad():
        before = one_velocity(model)
        bank.save("initial")
        count = sum(p.numel() for p in model.module.parameters())
        disturb(model)
        assert not torch.equal(one_velocity(model), before)
        with bank.using("initial"):
            assert torch.equal(one_velocity(model), before)
    assert bank.state_dict() == {"base": ["initial"], "adapters": {}}
    assert sum(p.numel() for p in model.module.parameters()) == count  # it costs nothing
    assert all(p.requires_grad for n, p in model.module.named_parameters() if ".lora_" in n)


def test_a_visit_to_a_copy_freezes_nothing():
    """FSDP2 looks once, in its first forward pass, at what is trained; that pass may be one of a copy."""
    model = tiny_model(tuning={"mode": "lora"})
    trained = {name for name, p in model.module.named_parameters() if p.requires_grad}
    bank = make_bank(model.module)
    bank.save("base")
    disturb(model)
    bank.save("adapter")
    for name in ("base", "adapter"):
        with bank.using(name):
            assert trained == {n for n, p in model.module.named_parameters() if p.requires_grad}


def test_average_of_adapters_begins_at_the_base():
    """One that was copied before anything moved is the base model, and keeps its part of it."""
    model = tiny_model(tuning={"mode": "lora"})
    bank = make_bank(model.module)
    with torch.no_grad():
        base = one_velocity(model)
        bank.save("average")
        disturb(model)
        for n in (1, 2):
            bank.save("average", 0.9)
            now, theirs = bank._weights("default"), bank._weights("average")
            for key, weight in theirs.items():
                kept = 1.0 if key.endswith("lora_A") else 1 - 0.9**n
                assert torch.allclose(weight, kept * now[key], atol=1e-6)
        with bank.using("average"):
            moved = (one_velocity(model) - base).norm()
        assert 0 < moved < 0.5 * (one_velocity(model) - base).norm()


def test_anchor_is_a_second_adapter_and_no_second_model():
    model = tiny_model(tuning={"mode": "lora"})
    disturb(model)
    adapters = sum(p.numel() for p in model.module.parameters() if p.requires_grad)
    total, bank = sum(p.numel() for p in model.module.parameters()), make_bank(model.module)
    with torch.no_grad():
        before = one_velocity(model)
        bank.save(ANCHOR)
        assert sum(p.numel() for p in model.module.parameters()) == total + adapters
        disturb(model)
        now = one_velocity(model)
        with bank.using(ANCHOR):
            assert torch.equal(one_velocity(model), before)
        assert torch.equal(one_velocity(model), now)
        bank.save(ANCHOR)
        with bank.using(ANCHOR):
            assert torch.equal(one_velocity(model), now)
    assert sum(p.numel() for p in model.module.parameters() if p.requires_grad) == adapters
    with pytest.raises(KeyError), bank.using("nobody"):
        pass


def test_adapters_as_anchor_equal_plain_copies():
    """The same run with either bank ends in the same weights, to the bit."""
    ends = []
    for kind in (LoraBank, CopyBank):
        model = tiny_model(tuning={"mode": "lora"})
        loop, seen = numbered_loop(model, policy={"num_iterations": 3}, kl={"ref_model_sync_steps": 2, "high": 10.0})
        loop.bank = kind(model.module)
        loop.run(2)
        trained = [p for p in model.module.parameters() if p.requires_grad]
        ends.append((torch.cat([p.detach().flatten() for p in trained]), [r.mean("kl_anchor") for r in seen.updates]))
    assert torch.equal(ends[0][0], ends[1][0])
    assert ends[0][1] == ends[1][1]
    assert max(ends[0][1]) > 0


def test_average_of_adapters_equals_average_of_copies():
    banks = []
    for kind in (LoraBank, CopyBank):
        model = tiny_model(tuning={"mode": "lora"})
        bank = kind(model.module)
        bank.save("ema", decay=0.9)
        for size in (0.05, 0.1):
            disturb(model, size)
            bank.save("ema", decay=0.9)
        with bank.using("ema"), torch.no_grad():
            banks.append(one_velocity(model))
    torch.testing.assert_close(*banks, rtol=0, atol=1e-6)


def test_old_policy_of_adapters_is_asked_under_its_own_adapter(monkeypatch):
    """An average of adapters makes the rollouts and answers at the noised points: not the policy, not the anchor."""
    given = []

    def recorded(model, batches, *rest, **more):
        given.append(batches)
        return update(model, batches, *rest, **more)

    monkeypatch.setattr("sage_grpo.core.loop.update", recorded)
    model = tiny_model(Wan, {"mode": "lora"})
    bank = make_bank(model.module)
    policy = {"batch_size": 2, "num_generations": 2, "prompts_per_iteration": 1}
    config = objective_config("nft", policy=policy | {"objective_settings": {"decay_rise": 0.4}}, sampling={"steps": 3})
    loop, _ = make_loop(config, model=model, bank=bank, reward=lambda v: torch.arange(len(v)).double())
    history = []
    for _ in range(3):
        loop.iterate()
        history.append({key: weight.detach().clone() for key, weight in bank._weights("default").items()})
    loop.iterate()  # its old policy: after one iteration a copy, then 0.4 and 0.5 of itself
    other, path = tiny_model(Wan, {"mode": "lora"}, guidance_scale=1.0), given[-1][0].trajectory
    with torch.no_grad():
        for key, weight in make_bank(other.module)._weights("default").items():
            first, second, third = (weights[key] for weights in history)
            weight.copy_(0.5 * (0.4 * first + 0.6 * second) + 0.5 * third)
        point = path.points[0]
        expected = other.velocity(point.x, point.x.new_full((2,), point.sigma), path.condition)
        now = model.velocity(point.x, point.x.new_full((2,), point.sigma), path.condition)
    assert torch.allclose(point.stored, expected, atol=1e-5)
    assert not torch.allclose(point.stored, now, atol=1e-5)


def test_bank_of_adapters_survives_a_restart():
    model = disturb(tiny_model(tuning={"mode": "lora"}))
    bank = make_bank(model.module)
    bank.save(ANCHOR)
    state = bank.state_dict()
    other = disturb(tiny_model(tuning={"mode": "lora"}))
    again = make_bank(other.module)
    again.load_state_dict(state)
    disturb(model), disturb(other)
    with torch.no_grad(), bank.using(ANCHOR), again.using(ANCHOR):
        assert torch.equal(one_velocity(model), one_velocity(other))


@pytest.mark.parametrize("mode", ["lora", "full"])
@pytest.mark.parametrize("adapter", [HunyuanVideo15, Wan22], ids=lambda a: a.__name__)
def test_bf16_keeps_trained_weights_in_fp32_and_the_ratio_at_one(adapter, mode):
    model = tiny_model(adapter, {"mode": mode, "precision": "bfloat16"})
    kinds = {p.requires_grad: set() for p in model.module.parameters()}
    for name, parameter in model.module.named_parameters():
        if not any(word in name for word in ("norm", "scale_shift_table", "time_embedder")):  # kept fp32 by diffusers
            kinds[parameter.requires_grad].add(parameter.dtype)
    assert kinds[True] == {torch.float32}
    if mode == "lora":
        assert kinds[False] == {torch.bfloat16}
    with torch.no_grad():
        assert one_velocity(model).dtype == torch.bfloat16
    loop, seen = numbered_loop(model)
    loop.iterate()
    assert set(seen.updates[0].per_step["ratio"]) == {1.0}
    assert seen.rollouts[0].trajectories[0].points[0].x.dtype == torch.float32


@pytest.mark.parametrize("mode", ["lora", "full"])
def test_recomputation_gives_the_same_gradient_with_less_memory(mode):
    gradients, peaks = [], []
    for recompute in (False, True):
        tuning = {"mode": mode, "gradient_checkpointing": recompute}
        model = tiny_model(Wan, tuning, frames=33, height=128, width=128)
        ask = prepared_velocity(model)
        with PeakMemory() as memory:
            ask().square().mean().backward()
        peaks.append(memory.peak)
        gradients.append([p.grad for p in model.module.parameters() if p.grad is not None])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)
    assert peaks[1] < 0.8 * peaks[0]


# in CI: one adapter of each class of blocks
COMPILED = ("Wan", "HunyuanVideo15", "LTXVideo", "LTX2", "QwenImage", "StableDiffusion3", "ZImage")


@pytest.mark.parametrize(
    "adapter",
    [
        pytest.param(cls, id=cls.__name__) if cls.__name__ in COMPILED else further(cls, id=cls.__name__)
        for cls in contract.adapters()
    ],
)
def test_repeated_blocks_compile_without_a_graph_break(adapter):
    """`fullgraph` raises at a break; aot_eager traces backward too and needs no compiler."""
    torch._dynamo.reset()
    plain = tiny_model(adapter)
    compiled = tiny_model(adapter, {"compile": "aot_eager"})
    ways = []
    for model in (plain, compiled):
        v = one_velocity(model)
        v.square().mean().backward()
        ways.append((v.detach(), [p.grad for p in model.module.parameters() if p.grad is not None]))
    torch.testing.assert_close(ways[0][0], ways[1][0])
    for one, other in zip(ways[0][1], ways[1][1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_compiled_model_passes_the_gate():
    torch._dynamo.reset()
    loop, seen = numbered_loop(tiny_model(Wan, {"mode": "lora", "compile": "aot_eager"}))
    loop.iterate()
    assert set(seen.updates[0].per_step["ratio"]) == {1.0}


def test_muon_takes_the_matrices_of_the_blocks():
    model = tiny_model(tuning={"mode": "full"})
    optimizer = build_optimizer(model.module, OptimizerConfig(type="muon", lr=1e-3))
    muon, adamw = optimizer.parts
    assert (type(muon).__name__, type(adamw).__name__) == ("Muon", "AdamW")
    assert all(p.dim() == 2 for group in muon.param_groups for p in group["params"])
    counted = sum(len(group["params"]) for group in optimizer.param_groups)
    assert counted == len([p for p in model.module.parameters() if p.requires_grad])

    before = [p.detach().clone() for group in optimizer.param_groups for p in group["params"]]
    for _ in range(2):
        one_velocity(model).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    now = [p for group in optimizer.param_groups for p in group["params"]]
    moved = [not torch.equal(a, b) for a, b in zip(before, now, strict=True)]
    assert sum(moved) > 0.8 * len(moved)  # a text without glyphs leaves their encoder alone

    other = tiny_model(tuning={"mode": "full"})
    again = build_optimizer(other.module, OptimizerConfig(type="muon", lr=1e-3))
    other.module.load_state_dict(model.module.state_dict())
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # torch shares tensors otherwise
    for m, o in ((model, optimizer), (other, again)):
        one_velocity(m).square().mean().backward()
        o.step()
    assert torch.equal(weights_of(model), weights_of(other))


def weights_of(model):
    return torch.cat([p.detach().flatten() for p in model.module.parameters()])


def test_muon_alone_when_everything_is_a_matrix():
    model = tiny_model(Wan, {"mode": "lora"})
    assert len(build_optimizer(model.module, OptimizerConfig(type="muon")).parts) == 1


def test_attention_backend_is_chosen_or_refused():
    tiny_model(Wan, {"attention": "native"})
    for name in ("nonsense", "flash"):
        with pytest.raises(TuningError, match=f"tuning.attention='{name}' cannot be used here"):
            tiny_model(Wan, {"attention": name})


def test_tiles_and_slices():
    model = tiny_model(Wan, {"vae_tiling": True})
    assert model.pipe.vae.use_tiling
    assert model.pipe.vae.use_slicing


SETTINGS = ({"gradient_checkpointing": True}, {"precision": "bfloat16"}, {"vae_tiling": True}, {"attention": "flash"})


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: next(iter(s)))
def test_a_setting_that_a_model_lacks_is_named(setting):
    (name,) = setting
    with pytest.raises(TuningError, match=f"tuning.{name}"):
        prepare(ShapesModel.from_pretrained(), load_recipe({"tuning": setting}).tuning)


def test_the_lab_model_takes_adapters_too():
    model = ShapesModel.from_pretrained()
    prepare(model, load_recipe({"tuning": {"mode": "lora", "rank": 2}}).tuning)
    assert len(lora_layers(model.module)) == 4 * 4
    assert isinstance(make_bank(model.module), LoraBank)


def test_timesteps_share_a_pass():
    """Fewer passes, the same gradient to rounding, and a ratio of exactly 1 before the first update."""
    ends, calls = [], []
    for together in (1, 2, 3):
        model = tiny_model(tuning={"mode": "lora"})
        loop, seen = numbered_loop(model, policy={"replay_timesteps": together})
        loop._checked = True
        count = []
        hook = model.module.register_forward_hook(lambda *a, count=count: count.append(torch.is_grad_enabled()))
        loop.optimizer = torch.optim.SGD([p for p in model.module.parameters() if p.requires_grad], lr=1.0)
        loop.iterate()
        hook.remove()
        assert set(seen.updates[0].per_step["ratio"]) == {1.0}
        ends.append(torch.cat([p.detach().flatten() for p in model.module.parameters() if p.requires_grad]))
        calls.append(sum(count))
    assert calls == [2 * 3, 2 * 2, 2 * 1]  # batches × passes over three steps, both branches of guidance in each
    for other in ends[1:]:
        torch.testing.assert_close(ends[0], other, rtol=1e-4, atol=1e-6)
    assert not torch.equal(ends[0], weights_of(tiny_model(tuning={"mode": "lora"}))[: len(ends[0])])


def test_shared_passes_still_meet_the_gate():
    model = tiny_model(tuning={"mode": "lora"})
    loop, seen = numbered_loop(model, policy={"replay_timesteps": 2, "num_iterations": 2})
    loop.iterate()
    assert seen.updates[0].mean("ratio") == 1.0
    assert weights(loop).isfinite().all()
