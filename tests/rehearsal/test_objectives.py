"""Every objective acted out with tiny models of both families, as adapters and with all weights."""

import json

import pytest
from typer.testing import CliRunner

from sage_grpo.cli import app
from sage_grpo.math.objectives import OBJECTIVES
from sweeps import further

RECIPES = {"wan": "wan-1.3b-24gb-lora", "hunyuan15": "hunyuan15-1gpu-lora"}
FIRST = {  # what CI asks for: each objective once, each kind twice or more
    "grpo": ("wan", "full"),
    "guard": ("wan", "lora"),
    "dppo": ("hunyuan15", "full"),
    "nft": ("hunyuan15", "lora"),
    "awm": ("wan", "full"),
    "dpo": ("hunyuan15", "full"),
    "rwr": ("wan", "lora"),
}
CASES = [
    (name, kind, mode) if FIRST[name] == (kind, mode) else further(name, kind, mode)
    for name in sorted(OBJECTIVES)
    for kind in RECIPES
    for mode in ("lora", "full")
]


def settings_for(name):
    found = [f"policy.objective={name}", "policy.clip=null", "policy.num_generations=4"]
    if OBJECTIVES[name].renoised:
        found += ["policy.points=2", "sampling.eta=0", "sampling.shared_initial_noise=false"]
    if OBJECTIVES[name].paired:
        found += ["policy.select=1", "policy.batch_size=2"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind", "mode"), CASES)
def test_an_objective_is_rehearsed(name, kind, mode, tmp_path):
    """Rollout, update, checkpoint, resume, export, and the export loaded by plain diffusers."""
    settings = [*settings_for(name), f"tuning.mode={mode}"]
    command = ["rehearse", RECIPES[kind], "--processes", "1", "--out", str(tmp_path / "r"), *settings, "--json"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout.splitlines()[-1])
    assert told["ok"]
    assert told["facts"]["updates"] >= 2
    assert told["facts"]["changed tensors"] > 0.8 * told["facts"]["of tensors"]
    rows = [json.loads(line) for line in (tmp_path / "r" / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["ratio_mean"] == 1.0
