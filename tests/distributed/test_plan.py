"""A plan on processes that only pretend says what real ones hold and write, to the byte."""

import json
import math
import subprocess
from collections import Counter
from dataclasses import replace

import pytest

pytest.importorskip("diffusers")
pytest.importorskip("peft")

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from distributed.launcher import environment, torchrun
from distributed.layouts import LayoutPlan, Shares, bytes_held, plan_layout, plan_recipe
from distributed.plan_worker import settings
from sage_grpo.config import load_recipe
from sage_grpo.distributed.fake_group import pretend
from sage_grpo.distributed.shard import shard
from sage_grpo.models import contract
from sage_grpo.preflight.plan.layout import Contents
from sage_grpo.preflight.plan.memory import model_states as fullest
from sweeps import further
from tiny_models import tiny_model

pytestmark = pytest.mark.slow

CASES = ("hunyuan15-lora", "hunyuan15-full")


@pytest.fixture(autouse=True)
def no_group_is_left():
    yield
    assert not dist.is_initialized()


def payload_by_file(checkpoint):
    """Of the tensors that were really written, by the name of the file."""
    found = Counter()
    for tensor in json.loads((checkpoint / "tensors" / "index.json").read_text()).values():
        for _, sizes, file, _, _ in tensor["pieces"]:
            found[file] += math.prod(sizes) * getattr(torch, tensor["dtype"]).itemsize
    return found


def test_a_plan_is_what_two_real_processes_hold_and_write(tmp_path):
    command = torchrun(2, "distributed.plan_worker", tmp_path, *CASES)
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for case in CASES:
        plan = plan_recipe(load_recipe(settings(tmp_path, case, 2)))
        held, real = plan.layout.held, json.loads((tmp_path / f"{case}.json").read_text())
        weights = ["trained weights", "frozen weights"] + ["copies"] * case.endswith("lora")
        for rank in (0, 1):
            assert sum(held[kind].by_rank[rank] for kind in weights) == real[rank]["weights"]
            assert held["copies"].by_rank[rank] == real[rank]["bank"]
            assert held["optimizer"].by_rank[rank] == real[rank]["optimizer"]
        files = payload_by_file(tmp_path / f"plan-{case}" / "checkpoints" / "step-00000001")
        assert sum(files.values()) == plan.layout.written.whole == sum(plan.layout.written.by_rank)
        for rank in (0, 1):  # numbers that both hold, such as the optimizer's count of steps, may go to either
            assert abs(files[f"__{rank}_0.distcp"] - plan.layout.written.by_rank[rank]) <= 10_000
        assert plan.layout.files == len(list((tmp_path / f"plan-{case}").glob("checkpoints/*/**/*"))) - 1


def tiny_contents(processes):
    model = tiny_model(tuning={"mode": "lora"})
    shard(model, processes.weights_mesh)
    named = dict(model.module.named_parameters())
    return Contents({"weights": named.values()}, named | {"alone": next(iter(named.values())).new_zeros(()).to_local()})


@pytest.mark.parametrize("replicate", [1, 4])
def test_shards_of_all_ranks_are_the_whole(replicate):
    plan = plan_layout(tiny_contents, 64, 64, replicate=replicate)
    weights = plan.held["weights"]
    assert sum(weights.by_rank) == replicate * weights.whole
    assert sum(plan.written.by_rank) == plan.written.whole == weights.whole + 4
    for rank in (0, 1, 15, 63):  # many tensors have fewer rows than there are shards
        with pretend(64, replicate=replicate, rank=rank) as processes:
            model = tiny_model(tuning={"mode": "lora"})
            shard(model, processes.weights_mesh)
            assert bytes_held(model.module) == weights.by_rank[rank]


class Forgetful(DefaultSavePlanner):
    """The first process leaves out the last tensor that it has a part of."""

    def create_local_plan(self):
        plan = super().create_local_plan()
        return replace(plan, items=plan.items[: -1 if self.is_coordinator else None])

    def _create_global_plan(self, plans):
        return self._dedup_save_plans(plans), None  # torch's own check would find it first


class ForgetsATensor(Forgetful):
    """Nobody writes it, which torch's own check does not see."""

    def create_local_plan(self):
        plan = DefaultSavePlanner.create_local_plan(self)
        return replace(plan, items=plan.items[1:])


class Doubling(Forgetful):
    """What all processes have, all of them write."""

    def create_local_plan(self):
        return DefaultSavePlanner.create_local_plan(self)

    def _dedup_save_plans(self, plans):
        return plans


@pytest.mark.parametrize(
    ("planner", "message"),
    [(Forgetful, "by nobody"), (ForgetsATensor, "by nobody"), (Doubling, "written twice")],
)
def test_holes_and_doubles_are_seen(planner, message):
    def contents(processes):
        found = tiny_contents(processes)
        last = next(tensor for tensor in found.saved.values() if tensor.shape == (4, 32))
        return Contents({}, found.saved if planner is Doubling else {**found.saved, "alone": last})

    with pytest.raises(ValueError, match=message):
        plan_layout(contents, 4, 2, planner=planner)


def test_groups_over_replicas():
    def layout(rollouts, replicas):
        share = rollouts // replicas
        ranges = tuple(range(i * share, (i + 1) * share) for i in range(replicas) for _ in range(2))
        return LayoutPlan({}, {}, ranges, Shares(0, ()), 0)  # two processes share a video

    assert layout(64, 32).groups(4) == (1, 2)  # two replicas make a group
    assert layout(64, 8).groups(4) == (2, 1)  # a replica makes two groups
    assert layout(24, 4).groups(4) == (2, 2)  # one and a half


@pytest.mark.parametrize(
    ("processes", "mode", "uneven"),
    [(64, "full", 1.01), (64, "lora", 1.01), further(512, "full", 1.01)],
)
def test_hunyuanvideo_at_full_size(processes, mode, uneven):
    size = [f"parallel.processes={processes}", f"policy.prompts_per_iteration={processes // 4}", f"tuning.mode={mode}"]
    config = load_recipe("hunyuan15-64gpu", size)
    plan = plan_recipe(config)
    assert plan.parameters == 8_326_608_160
    assert plan.layout.mesh == {"replicate": 1, "shard": processes // 2, "sequence": 2}
    held = plan.layout.held
    first = fullest(config).by_kind  # the same without going through all processes
    assert first == {kind: shares.by_rank[0] for kind, shares in held.items()}
    assert all(size == max(held[kind].by_rank) for kind, size in first.items())
    for shares in (*held.values(), plan.layout.written):
        assert len(shares.by_rank) == processes
    for kind in ("trained weights", "frozen weights", "copies", "gradients"):
        assert sum(held[kind].by_rank) == held[kind].whole
    weights = held["trained weights"].whole + held["frozen weights"].whole
    if mode == "full":
        assert weights == 4 * 8_326_608_160
    else:
        assert weights == 2 * 8_326_608_160 + held["trained weights"].whole
    assert held["copies"].whole == held["trained weights"].whole  # anchor
    everything = [sum(column) for column in zip(*(shares.by_rank for shares in held.values()), strict=True)]
    fair = sum(shares.whole for shares in held.values()) / processes
    assert max(everything) <= fair * uneven
    assert sum(plan.layout.written.by_rank) == plan.layout.written.whole
    assert plan.layout.files == processes + 3
    assert plan.layout.groups(4) == (1, 2)


@pytest.mark.parametrize("adapter", contract.adapters(), ids=lambda adapter: adapter.__name__)
def test_conditions_are_as_large_as_they_are_said_to_be(adapter, tmp_path):
    model = contract.load(adapter, contract.make_checkpoint(adapter, tmp_path))
    prompt, *_ = contract.prompts_for(model)
    real, blank = model.encode([prompt] * 2), model.blank_condition(2)
    varies = ("text", "glyphs") if hasattr(adapter, "typical_text") else ()  # as many tokens as a prompt has
    plain = [name for name in real if not name.endswith(varies)] if varies else list(real)
    assert {name: real[name].shape for name in plain} == {name: blank[name].shape for name in plain}
    assert {name: (x.dim(), x.shape[-1]) for name, x in real.items()} == {
        name: (x.dim(), x.shape[-1]) for name, x in blank.items()
    }
