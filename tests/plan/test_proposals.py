"""A plan proposes copies of the weights if they fit and save time; its figures are those of the recipe it proposes."""

from dataclasses import replace

import pytest

from sage_grpo.config import load_recipe
from sage_grpo.preflight.plan.calibration import Calibration
from sage_grpo.preflight.plan.estimate import estimate
from sage_grpo.preflight.plan.hardware import GPUS
from sage_grpo.preflight.plan.proposals import WORTH, copies, keep_attention, proposals
from sage_grpo.preflight.plan.show import proposal_line

NODE = replace(GPUS["h100-80g"], per_node=4)
SLOW_NETWORK = replace(NODE, network=NODE.network / 1e4)  # or the laboratory's small messages would not be noticed
SIXTEEN = ["parallel.processes=16", "policy.prompts_per_iteration=16", "policy.batch_size=8"]


def plan(gpu, *changes):
    return estimate(load_recipe("lab", [*SIXTEEN, *changes]), gpu, Calibration())


@pytest.mark.slow
def test_a_copy_per_node_is_proposed_where_the_network_is_slow():
    before = plan(SLOW_NETWORK)
    found = copies(before)
    after = plan(SLOW_NETWORK, found.change)
    assert found.change == "parallel.replicate=4"
    assert found.saves == pytest.approx(1 - after.iteration / before.iteration)
    assert found.saves_if_slow == pytest.approx(1 - after.slow.iteration / before.slow.iteration)
    assert found.saves > WORTH
    assert found.memory == after.memory.peak > before.memory.peak
    assert after.seconds["train"] < before.seconds["train"]
    assert f"{found.change} saves {found.saves:.1%}" in proposal_line(found)
    assert copies(after) is None  # it has its copies already


@pytest.mark.slow
def test_fewer_copies_are_proposed_where_one_per_node_does_not_fit():
    four, two = (plan(SLOW_NETWORK, f"parallel.replicate={n}").memory.peak for n in (4, 2))
    assert two < four
    tight = replace(SLOW_NETWORK, memory=(two + four) / 2 / 0.92)
    assert copies(plan(tight)).change == "parallel.replicate=2"
    full = replace(SLOW_NETWORK, memory=two / 2)
    assert copies(plan(full)) is None


@pytest.mark.slow
def test_attention_is_kept_where_memory_allows(tmp_path):
    pytest.importorskip("diffusers")
    from sage_grpo.models import contract
    from sage_grpo.models.wan import Wan

    folder = contract.make_checkpoint(Wan, tmp_path / "tiny")
    size = ["model.frames=9", "model.height=128", "model.width=128", f"model.path={folder}"]

    def tiny(gpu, *changes):
        return estimate(load_recipe("wan-1.3b-24gb-lora", [*size, *changes]), gpu, Calibration())

    before = tiny(GPUS["rtx4090-24g"])
    found, after = keep_attention(before), tiny(GPUS["rtx4090-24g"], "tuning.keep_attention=true")
    assert (found in proposals(before)) == (found.saves >= WORTH)
    assert found.saves > 0
    assert found.change == "tuning.keep_attention=true"
    assert found.saves == pytest.approx(1 - after.iteration / before.iteration)
    assert found.memory == after.memory.peak
    assert after.memory.parts["activations"] > before.memory.parts["activations"]
    # what recomputation costs is no useful work: the same as without any
    none = tiny(GPUS["rtx4090-24g"], "tuning.gradient_checkpointing=false")
    assert after.useful_flops == pytest.approx(none.useful_flops, rel=0.02)
    assert before.useful_flops == pytest.approx(none.useful_flops, rel=0.02)
    assert keep_attention(after) is None
    assert keep_attention(none) is None
    assert keep_attention(tiny(GPUS["rtx4090-24g"], "tuning.compile=inductor")) is None
    assert keep_attention(tiny(replace(GPUS["rtx4090-24g"], memory=after.memory.peak / 0.95))) is None  # no room


@pytest.mark.slow
def test_nothing_is_proposed_where_it_saves_nothing():
    assert proposals(plan(replace(NODE, network=NODE.link))) == []
    assert copies(plan(replace(SLOW_NETWORK, per_node=16))) is None  # one node
    assert copies(plan(replace(SLOW_NETWORK, per_node=5))) is None  # nodes that are not filled
