"""The rehearsal at full size, here with a network whose full size is tiny: every stage, every figure."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("diffusers")

import torch
from typer.testing import CliRunner

from sage_grpo.cli import app
from sage_grpo.config import ConfigError, load_recipe
from sage_grpo.models import contract
from sage_grpo.models.wan import Wan
from sage_grpo.preflight.rehearsal.full_size import check_room
from sage_grpo.preflight.rehearsal.stage_worker import random_weights

pytestmark = [pytest.mark.slow, pytest.mark.real_start]

SETTINGS = ["model.options={text_tokens: 24}", "tuning.rank=8", "rewards=[{type: motion}]"]


def test_every_stage_is_measured(tmp_path):
    path = contract.make_checkpoint(Wan, tmp_path / "wan")
    asked = ["rehearse", "wan-1.3b-24gb-lora", f"model.path={path}", *SETTINGS, "--full-size", "--json"]
    result = CliRunner().invoke(app, [*asked, "--out", str(tmp_path / "r")])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout.splitlines()[-1])
    assert list(told["stages"]) == ["checkpoint", "train", "resume", "export"]
    assert told["parameters"] == sum(p.numel() for p in Wan.tiny().transformer.parameters())
    assert all(size > 0 for size in (*told["disk"].values(), *told["planned"].values()))
    for name in ("train", "resume"):
        assert told["stages"][name]["working"] > 0
        assert told["stages"][name]["seconds"]["load"] > 0
    rows = (tmp_path / "r" / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(rows) == 2  # the resumed stage went on from the first
    assert (tmp_path / "r" / "export" / "pytorch_lora_weights.safetensors").exists()


def test_a_computer_that_is_too_small_is_told_so(tmp_path):
    config = load_recipe("hunyuan15-64gpu")
    with pytest.raises(ConfigError, match=r"needs about 1300000 GB of memory.* GB are free"):
        check_room(config, 10**15, tmp_path)


def test_a_model_of_the_laboratory_needs_no_such_rehearsal():
    result = CliRunner().invoke(app, ["rehearse", "lab", "--full-size"])
    assert result.exit_code == 2
    assert "shapes is small" in " ".join((result.stderr or result.output).split())


COUNTED = """
import torch
from sage_grpo.preflight.rehearsal.stage_worker import forget_most, most, resident
forget_most()
before, start = most(), resident()
held = torch.ones(2**26)  # 256 MB
assert 0.9 * held.nbytes < resident() - start < 1.2 * held.nbytes
assert most() - before > 0.9 * held.nbytes
del held
forget_most()
assert most() < before + 2**26
"""


def test_memory_is_the_systems_count():
    """In a process of its own, as every stage is: what other tests left to the allocator must not count."""
    done = subprocess.run([sys.executable, "-c", COUNTED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_random_weights_are_those_of_a_fresh_network():
    with torch.device("meta"):
        part = torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.LayerNorm(200))
    random_weights(part)
    assert part[0].weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert (part[0].bias == 0).all()
    assert (part[1].weight == 1).all()
