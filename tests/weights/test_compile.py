"""Compiled blocks with the real compiler, on the CPU in bfloat16: the gate takes its rounding, and training goes on."""

import pytest

pytest.importorskip("diffusers")
pytest.importorskip("peft")

import torch

from sage_grpo.models.hunyuan15 import HunyuanVideo15
from sage_grpo.models.wan import Wan
from sweeps import further
from tiny_models import disturb, tiny_model
from weights.test_start_checks import loop_for

pytestmark = pytest.mark.slow


def compiled(adapter, mode, recompute):
    torch._dynamo.reset()
    tuning = {"mode": mode, "precision": "bfloat16", "gradient_checkpointing": recompute, "compile": "inductor"}
    return disturb(tiny_model(adapter, tuning), 0.02)


@pytest.mark.parametrize(
    ("adapter", "mode", "recompute"),
    [
        (Wan, "lora", True),
        further(Wan, "full", False),
        further(Wan, "full", True),
        further(Wan, "lora", False),
        further(HunyuanVideo15, "full", False),
        further(HunyuanVideo15, "full", True),
        further(HunyuanVideo15, "lora", False),
        further(HunyuanVideo15, "lora", True),
    ],
)
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
