"""Recomputation that keeps the outputs of attention: the same gradients, no kernel run twice, memory in between."""

from collections import Counter

import pytest

pytest.importorskip("diffusers")
pytest.importorskip("peft")

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from memory import PeakMemory
from sage_grpo.config import ConfigError, load_recipe
from sage_grpo.models import contract
from sage_grpo.models.wan import Wan
from tiny_models import one_velocity, prepared_velocity, tiny_model

pytestmark = pytest.mark.slow
PLAIN, AGAIN = {}, {"gradient_checkpointing": True}
KEPT = AGAIN | {"keep_attention": True}


class Kernels(TorchDispatchMode):
    """Counts the calls of attention kernels, forward and backward."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "attention" in str(func):
            self.calls["backward" if "backward" in str(func) else "forward"] += 1
        return func(*args, **(kwargs or {}))


def gradients(adapter, tuning):
    model = tiny_model(adapter, tuning)
    with Kernels() as seen:
        one_velocity(model).square().mean().backward()
    return seen.calls, [p.grad for p in model.module.parameters() if p.grad is not None]


@pytest.mark.parametrize("adapter", contract.adapters(), ids=lambda cls: cls.__name__)
def test_no_kernel_runs_twice_and_gradients_are_equal(adapter):
    (plain, _), (again, expected), (kept, found) = (gradients(adapter, tuning) for tuning in (PLAIN, AGAIN, KEPT))
    assert again["forward"] > plain["forward"] == kept["forward"] > 0
    assert plain["backward"] == again["backward"] == kept["backward"] > 0
    assert found
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("mode", ["lora", "full"])
def test_memory_lies_between(mode):
    peaks = []
    for tuning in (PLAIN, AGAIN, KEPT):
        ask = prepared_velocity(tiny_model(Wan, {"mode": mode, **tuning}, frames=33, height=128, width=128))
        with PeakMemory() as memory:
            ask().square().mean().backward()
        peaks.append(memory.peak)
    plain, again, kept = peaks
    assert again < kept < plain


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["tuning.keep_attention=true"], "gradient_checkpointing"),
        (["tuning.keep_attention=true", "tuning.gradient_checkpointing=true", "tuning.compile=inductor"], "exclude"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        load_recipe("lab", changes)
