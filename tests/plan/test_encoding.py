"""What a plan says of encoding the prompts, against a count by hand."""

from dataclasses import replace

import pytest

from sage_grpo.config import load_recipe
from sage_grpo.preflight.plan.assumptions import assume
from sage_grpo.preflight.plan.encoding import Encoders, encoding, prompts_of
from sage_grpo.preflight.plan.hardware import GPUS
from sage_grpo.preflight.plan.memory import Memory

ASSUMED = replace(assume("expected"), text_encoder=0.5, memory=0.5, disk=2e9)
H100 = replace(GPUS["h100-80g"], flops=1e15, bandwidth=2e12, host=10e9)


def test_seconds_of_encoding_are_those_counted_by_hand():
    """4 GB of encoders: 2 s from disk, 0.4 s to the device; 10 TFLOP take 20 ms, at a speed that reading allows."""
    config = load_recipe(
        "hunyuan15-8gpu-lora", ["prompts.path=null", "run.iterations=50", "policy.prompts_per_iteration=16"]
    )
    found = encoding(config, Encoders(4_000_000_000, 10e12, 2_000_000), H100, ASSUMED)
    assert found.prompts == 800
    assert found.seconds == pytest.approx(2.0 + 0.4 + (800 / 8 + 1) * 0.02)
    assert found.stored == 801 * 2_000_000
    small = encoding(config, Encoders(4_000_000_000, 1e12, 0), H100, ASSUMED)  # bound by reading the weights
    assert small.seconds == pytest.approx(2.4 + 101 * 0.004)


def test_no_more_prompts_than_the_file_has(tmp_path):
    (tmp_path / "prompts.txt").write_text("a cat\na dog\na boat\n")
    config = load_recipe("hunyuan15-8gpu-lora", [f"prompts.path={tmp_path}/prompts.txt", "run.iterations=50"])
    assert prompts_of(config) == 3
    gone = load_recipe("hunyuan15-8gpu-lora", ["prompts.path=nowhere.txt", "run.iterations=50"])
    assert prompts_of(gone) == 50 * gone.policy.prompts_per_iteration


def test_encoders_take_memory_before_the_first_iteration_only():
    parts = {"text encoders": 15, "VAE": 1, "frozen weights": 20, "optimizer": 3, "activations": 7}
    held, ahead = Memory(parts, 0, (), 0, ()), Memory(parts, 0, (), 0, (), encodes_ahead=True)
    assert (held.phase("encode"), held.phase("train"), held.peak) == (39, 46, 46)
    assert (ahead.phase("encode"), ahead.phase("train"), ahead.peak) == (39, 31, 39)
