"""Units of FSDP2: how many messages a pass takes, counted and planned, and that they change no gradient."""

import pytest

pytest.importorskip("diffusers")
pytest.importorskip("peft")

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from sage_grpo.config import load_recipe
from sage_grpo.core.protocols import Prompt
from sage_grpo.core.video_model import whole
from sage_grpo.distributed.device import HOST
from sage_grpo.distributed.fake_group import pretend
from sage_grpo.distributed.processes import lay_out
from sage_grpo.distributed.shard import shard
from sage_grpo.models import contract
from sage_grpo.preflight.plan.fake_tensors import imagine_weights, without_values
from sage_grpo.preflight.plan.operations import OperationCounter
from sage_grpo.preflight.plan.probe import probe
from sage_grpo.registry import resolve_model
from sweeps import further
from tiny_models import disturb, tiny_model

pytestmark = pytest.mark.slow

FULL = {"mode": "full", "precision": "bfloat16"}
EXTRA = {"hunyuan15": 1, "qwen-image": 1, "sd3": 1, "ltx": 0, "wan": 0, "ltx2": 0, "z-image": 0}  # frozen matrices


def units(model):
    return {module._get_fsdp_state() for module in model.module.modules() if isinstance(module, FSDPModule)}


def is_at_rest(unit):
    """Every module has been called, and the weights are in shards again."""
    return not unit._modules_to_run_forward and all(group.is_sharded for group in unit._fsdp_param_groups)


def messages_of(name, *, again):
    """Of a forward pass without gradient and of a training pass, by purpose."""
    model = tiny_model(resolve_model(name), FULL | {"gradient_checkpointing": again}, guidance_scale=1.0)
    counts = []
    with pretend(2) as processes, without_values():
        imagine_weights(model.module)
        shard(model, processes.weights_mesh, model.autocast_dtype)
        x = torch.zeros(1, *model.latent_shape(Prompt("")))
        for training in (False, True):
            with OperationCounter() as counter, torch.set_grad_enabled(training):
                velocity = model.velocity(x, x.new_ones(1), model.blank_condition(1))
                assert all(is_at_rest(unit) for unit in units(model))
                if training:
                    velocity.float().square().mean().backward()
            assert all(is_at_rest(unit) for unit in units(model))
            counts.append(counter.messages)
    return len(model.shard_blocks), *counts


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("name", ["hunyuan15", *(further(name) for name in EXTRA if name != "hunyuan15")])
def test_a_block_is_gathered_in_two_messages(name, again):
    """Its matrices, and the rest; then what the last block has frozen, and the rest of the network."""
    blocks, forward, training = messages_of(name, again=again)
    gathered = 2 * blocks + 1 + EXTRA[name]
    assert forward == {"weights": gathered}
    assert training == {"weights": 2 * gathered, "gradients": 2 * blocks + 1}


def test_all_54_blocks_of_hunyuanvideo_as_planned():
    """The plan's line through shallow networks, with recomputation as the recipe has it."""
    two = ["parallel.processes=2", "parallel.sequence=1", "policy.prompts_per_iteration=1", "model.guidance_scale=1"]
    config = load_recipe("hunyuan15-64gpu", two)
    assert config.tuning.gradient_checkpointing
    found = probe(config)
    assert found.forward.messages["weights"] == 2 * 54 + 2
    assert found.training.messages["weights"] == 2 * (2 * 54 + 2)
    assert found.training.messages["gradients"] == 2 * 54 + 1


@pytest.mark.parametrize(("name", "in_turn"), [("hunyuan15", False), ("wan2.2", True)])
def test_copies_add_up_once_an_update(name, in_turn):
    """In its last backward pass; experts, of which the last pass trains one, in every pass that trains them."""
    model = tiny_model(resolve_model(name), FULL, guidance_scale=1.0)
    with pretend(4, replicate=2) as processes, without_values():
        imagine_weights(model.module)
        shard(model, processes.weights_mesh, model.autocast_dtype)
        x = torch.zeros(1, *model.latent_shape(Prompt("")))
        sums = []
        for last in (False, False, True):
            processes.set_last_backward(model.module, last=last)
            with OperationCounter() as counter:
                model.velocity(x, x.new_ones(1), model.blank_condition(1)).float().square().mean().backward()
            sums.append((counter.messages["sums over copies"], counter.messages["gradients"]))
    units = sums[-1][1]
    assert units > 0
    assert sums == [(units * (in_turn or last), units) for last in (False, False, True)]


@pytest.fixture
def group_of_one():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def gradients(name, *, again, sharded):
    model = disturb(tiny_model(resolve_model(name), FULL | {"gradient_checkpointing": again}))
    if sharded:
        shard(model, lay_out(1, 1, 1, HOST).weights_mesh, model.autocast_dtype)
    x = torch.randn(2, *model.latent_shape(Prompt("")), generator=torch.Generator().manual_seed(3))
    condition = model.encode(contract.prompts_for(model)[:2])
    model.velocity(x, torch.tensor([0.9, 0.9]), condition).float().square().mean().backward()
    return {name: whole(p.grad) for name, p in model.module.named_parameters() if p.grad is not None}


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("name", ["hunyuan15", *(further(name) for name in EXTRA if name != "hunyuan15")])
def test_gradients_are_those_without_units_to_the_bit(name, again):
    plain, sharded = (gradients(name, again=again, sharded=sharded) for sharded in (False, True))
    assert plain.keys() == sharded.keys()
    assert [name for name, gradient in plain.items() if not torch.equal(gradient, sharded[name])] == []
