"""Every shipped recipe is acted out at toy size; the rehearsal sees what a real run would trip over."""

import json

import pytest
import yaml
from typer.testing import CliRunner

from sage_grpo.cli import app
from sage_grpo.config.load import shipped_recipes

runner = CliRunner()


def rehearse(*arguments):
    result = runner.invoke(app, ["rehearse", *map(str, arguments), "--json"])
    return result, json.loads(result.stdout.splitlines()[-1]) if result.exit_code == 0 else None


@pytest.mark.parametrize("name", list(shipped_recipes()))
def test_every_shipped_recipe(name, tmp_path):
    result, told = rehearse(name, "--out", tmp_path / "r")
    assert result.exit_code == 0, result.output
    assert told["ok"]
    assert told["facts"]["iterations"] == 2
    assert told["facts"]["updates"] >= 1
    assert told["facts"]["changed tensors"] > 0.5 * told["facts"]["of tensors"]
    assert {"export", "sample", "resume, second iteration"} <= set(told["covered"])
    assert (tmp_path / "r" / "samples" / "sheet.png").exists()
    rows = [json.loads(line) for line in (tmp_path / "r" / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] if "iteration" in row else row["step"] for row in rows] == [1, 2]


@pytest.mark.parametrize("name", [n for n in shipped_recipes() if not n.startswith("lab")])
def test_every_number_of_a_recipe_is_explained(name):
    for line in shipped_recipes()[name].read_text().splitlines():
        key, _, value = line.strip().partition(":")
        if key not in ("seed", "width", "type", "path", "out") and any(c.isdigit() for c in value.split("#")[0]):
            assert "#" in line, f"{name}: {line}"


@pytest.mark.parametrize("name", [n for n in shipped_recipes() if "64gpu" in n])
def test_reference_layout(name):
    """2 videos × 32 replicas = 64 rollouts = 16 prompts × 4."""
    recipe = yaml.safe_load(shipped_recipes()[name].read_text())
    assert recipe["parallel"] == {"processes": 64, "sequence": 2}
    assert (recipe["policy"]["batch_size"], recipe["policy"]["num_generations"]) == (2, 4)
    assert recipe["policy"]["prompts_per_iteration"] == 16
    assert recipe["model"]["frames"] == 81


RECIPE = {
    "model": {"type": "ltx", "path": "somewhere/else"},
    "tuning": {"mode": "lora", "compile": "inductor", "attention": "flash", "rank": 64, "alpha": 128},
    "sampling": {"window_size": 2},
    "rewards": [{"type": "nowhere.at.all:Score", "weights": {"A": 1.0, "B": 0.5}}],
    "run": {"trackers": ["wandb"]},
}


def test_stand_ins_are_told(tmp_path):
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(RECIPE | {"parallel": {"processes": 4}}))
    result, told = rehearse(tmp_path / "r.yaml", "policy.prompts_per_iteration=4")
    assert result.exit_code == 0, result.output
    words = "\n".join(told["stand_ins"])
    for expected in ("aot_eager for inductor", "native for flash", "1 for 4", "wandb", "prompts", "names A, B"):
        assert expected in words


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards": [{"type": "shape"}]}, "did you mean 'shapes'"),
        ({"model": {"type": "ltxx"}}, "did you mean 'ltx'"),
        ({"tuning": {"mode": "lora", "targets": ["to_query"]}}, "no layer of the model is called 'to_query'"),
        ({"model": {"type": "ltx", "options": {"text_token": 1}}}, "did you mean 'text_tokens'"),
        ({"sampling": {"kernel": "ode"}}, "no noise to learn from"),
        ({"tuning": {"vae_tiling": True}, "model": {"type": "shapes"}}, "tuning.vae_tiling"),
    ],
)
def test_faults_of_a_recipe_are_found(change, message, tmp_path):
    """What would fail after an hour on rented machines fails here, in a sentence."""
    values = RECIPE | {"tuning": {"mode": "lora"}} | change
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(values))
    result, _ = rehearse(tmp_path / "r.yaml")
    assert result.exit_code == 2
    assert message in " ".join((result.stderr or result.output).split())


def test_folder_of_its_own(tmp_path):
    (tmp_path / "x").touch()
    result, _ = rehearse("lab", "--out", tmp_path)
    assert result.exit_code == 2
    assert "is not empty" in " ".join((result.stderr or result.output).split())


def test_a_reward_that_is_always_the_same(tmp_path, monkeypatch):
    """Nothing would be learned: told in a sentence."""
    (tmp_path / "flat_rewards.py").write_text("def one(videos, prompts):\n    return [1.0] * len(videos)\n")
    monkeypatch.syspath_prepend(tmp_path)
    result, _ = rehearse("lab-fast", 'rewards=[{type: "flat_rewards:one"}]')
    assert result.exit_code == 2
    assert "changed no weight" in " ".join((result.stderr or result.output).split())
