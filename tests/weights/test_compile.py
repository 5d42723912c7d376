"""Compiled blocks with the real compiler, on the CPU in bfloat16: the gate takes its rounding, and training goes on."""

import pytest

pytest.importorskip("diffusers")
pytest.importorskip("peft")

import torch

from sage_grpo.models.hunyuan15 import HunyuanVideo15
from sage_grpo.models.wan import Wan
from tiny_models import disturb, tiny_model
from weights.test_start_checks import loop_for

pytestmark = pytest.mark.slow


def compiled(adapter, mode, recompute):
    torch._dynamo.reset()
    tuning = {"mode": mode, "precision": "bfloat16", "gradient_checkpointing": recompute, "compile": "inductor"}
    return disturb(tiny_model(adapter, tuning), 0.02)


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("mode", ["lora", "full"])
@pytest.mark.parametrize("adapter", [Wan, HunyuanVideo15], ids=lambda a: a.__name__)
def test_compiled_bfloat16_passes_the_gate_and_trains(adapter, mode, recompute):
    model = compiled(adapter, mode, recompute)
    before = [p.detach().clone() for p in model.module.parameters() if p.requires_grad]
    loop, seen = loop_for(model)
    deviation = loop.iterate()["replay_deviation"]
    print(f"{adapter.__name__} {mode} recomputed={recompute}: replay deviates by {deviation:.2g}")
    for _ in range(9):
        loop.iterate()
    assert len(seen.updates) == loop.updates == 10
    assert all(set(result.per_step["ratio"]) == {1.0} for result in seen.updates)
    after = [p for p in model.module.parameters() if p.requires_grad]
    assert all(p.isfinite().all() for p in after)
    assert sum(not torch.equal(a, b) for a, b in zip(before, after, strict=True)) > 0.8 * len(after)
