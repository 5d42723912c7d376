"""The paper's tables and figures: every printed line is valid, and Table 2 comes out in the paper's layout."""

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sage_grpo.cli import app
from sage_grpo.config import ConfigError, load_recipe
from sage_grpo.paper.commands import finishing_line, plan_commands, training_line
from sage_grpo.paper.experiments import EXPERIMENTS, METHODS, SETTINGS
from sage_grpo.paper.run import devices_of
from sage_grpo.paper.table import lower_is_better, markdown, read_rows

# Table 2 of the paper, a row per training run: setting, method, kernel, equalizer, anchor, weight of the velocity term
ROWS = [
    (setting, method, kernel, equalizer, anchor, velocity)
    for setting in ("A", "B")
    for method, kernel, equalizer, variants in (
        ("DanceGRPO", "dance", False, [("none", 0.0), ("fixed", 0.0)]),
        ("FlowGRPO", "flow", False, [("none", 0.0), ("fixed", 0.0)]),
        ("CPS", "cps_unscaled", False, [("none", 0.0), ("fixed", 0.0)]),
        ("SAGE-GRPO", "sage", True, [("none", 0.0), ("fixed", 0.0), ("moving", 0.1)]),
    )
    for anchor, velocity in variants
]


def planned(name, base="lab-paper", **more):
    return plan_commands(EXPERIMENTS[name], base, "out", **more)


@pytest.mark.parametrize("base", ["hunyuan15-64gpu-released", "lab-paper"])
def test_table_2_is_the_papers_grid(base):
    found = planned("table2", base)
    assert len(found.runs) == len(ROWS) == 18
    for run, recipe, row in zip(found.runs, found.recipes, ROWS, strict=True):
        setting, method, kernel, equalizer, anchor, velocity = row
        assert (run.setting, run.method) == (setting, method)
        assert (recipe.sampling.kernel, recipe.policy.equalizer) == (kernel, equalizer)
        assert (recipe.kl.anchor, recipe.kl.old_weight) == (anchor, velocity)
        assert recipe.policy.reward_weights == {"A": (1, 1, 1), "B": (0.5, 0.5, 1)}[setting]
    names = [run.name for run in found.runs]
    assert len(set(names)) == 18
    assert all(recipe.run.out == f"out/{name}" for name, recipe in zip(names, found.recipes, strict=True))


@pytest.mark.parametrize("base", ["hunyuan15-64gpu-released", "lab-paper"])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_line_passes_its_own_check(name, base):
    """As `train --check` reads it, from the words of the printed line."""
    found = planned(name, base)
    processes = found.place.recipe.parallel.processes
    for arguments, recipe in zip(found.trainings, found.recipes, strict=True):
        for launcher in ("torchrun", "slurm"):
            words = shlex.split(training_line(arguments, processes, launcher))
            recipe_at = words.index(base)
            assert load_recipe(words[recipe_at], words[recipe_at + 1 :]) == recipe
            if launcher == "torchrun" and processes > 8:
                assert f"--nnodes={processes // 8}" in words
                assert "--nproc-per-node=8" in words
    for arguments in found.finish:
        assert shlex.split(finishing_line(arguments, processes))[-len(arguments) :] == arguments


def test_figure_7_has_the_papers_schedules():
    constant, two_stage, weak = (recipe.kl for recipe in planned("figure7", "hunyuan15-64gpu-released").recipes)
    assert (constant.warmup, constant.high) == (0, 1e-5)
    assert (two_stage.warmup, two_stage.low, two_stage.high) == (100, 1e-7, 1e-5)
    assert (weak.warmup, weak.low, weak.high) == (100, 1e-7, pytest.approx(1e-6))


def test_runs_last_as_long_as_the_papers_study():
    assert {recipe.run.iterations for recipe in planned("table3", "hunyuan15-64gpu-released").recipes} == {100}
    assert {recipe.run.iterations for recipe in planned("table3", "lab-paper").recipes} == {32}


def test_a_recipe_without_the_papers_scores_is_refused():
    with pytest.raises(ConfigError, match="VQ, MQ, TA; this recipe has sharpness"):
        planned("table2", overrides=["rewards=[{type: sharpness}]"])


def test_a_machine_without_gpus_is_told_what_to_do(monkeypatch):
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda check_available=False: None)
    with pytest.raises(ConfigError, match="needs 64 GPUs and this machine has none"):
        devices_of(load_recipe("hunyuan15-64gpu-released"), 1)
    assert devices_of(load_recipe("lab-paper"), 2) == [{}, {}]


def test_the_table_in_the_papers_layout(tmp_path):
    """Overall is VQ + MQ + TA in both settings; the best three of a column are marked over both."""
    runs = planned("table2").runs
    means = {run.name: {"VQ": i / 100, "MQ": -i / 50, "TA": 1.0} for i, run in enumerate(runs, 1)}
    means["base"] = {"VQ": 0.0, "MQ": 0.0, "TA": 0.5}
    scores = {name: {score: {"mean": mean} for score, mean in row.items()} for name, row in means.items()}
    for row in scores.values():
        row["Overall"] = {"mean": 99.0}  # with weights of some recipe: not the paper's
    (tmp_path / "results.json").write_text(json.dumps({"means": scores}))
    lines = markdown(read_rows(tmp_path / "results.json", runs)).splitlines()
    assert lines[0] == "| Method | Configuration | Overall | VQ | MQ | TA |"
    assert lines[2].startswith("| Base | (untrained) | 0.5000 |")
    assert lines[3].startswith("| *Setting A: VQ 1, MQ 1, TA 1* |")
    assert lines[4] == "| DanceGRPO | w/o KL | **0.9900** | 0.0100 | <u>−0.0200</u> | **1.0000** |"
    assert lines[13].startswith("| *Setting B: VQ 0.5, MQ 0.5, TA 1* |")
    assert lines[22].startswith("| SAGE-GRPO | w/ Dual Moving KL | 0.8200 | **0.1800** |")
    del scores["b-sage-dual"]
    (tmp_path / "results.json").write_text(json.dumps({"means": scores}))
    with pytest.raises(ConfigError, match="lacks b-sage-dual"):
        read_rows(tmp_path / "results.json", runs)
    with pytest.raises(ConfigError, match="run the evaluation first"):
        read_rows(tmp_path / "none.json", runs)


def test_lower_is_better_where_the_evaluation_says_so(tmp_path):
    runs = planned("table2").runs
    scores = {"VQ": False, "MQ": False, "TA": False, "distance": True}
    means = {run.name: {name: {"mean": float(i)} for name in scores} for i, run in enumerate(runs)}
    results = tmp_path / "results.json"
    about = [{"name": name, "lower": lower} for name, lower in scores.items()]
    results.write_text(json.dumps({"means": means, "scores": about}))
    lines = markdown(read_rows(results, runs), lower_is_better(results)).splitlines()
    assert lines[0].endswith("| TA | distance ↓ |")
    assert lines[3].endswith("| 0.0000 | **0.0000** |")  # the first run: the worst of all, but for the distance
    assert lines[21].endswith("| **17.0000** | 17.0000 |")


def test_the_page_has_the_table_on_record():
    """All 18 runs at laboratory size, as `sage-grpo paper table2 --base lab-paper --run` made them."""
    docs = Path(__file__).parents[2] / "docs"
    record = docs / "paper" / "table2.json"
    rows = read_rows(record, planned("table2").runs)
    assert len(rows) == 19
    assert markdown(rows, lower_is_better(record)).strip() in (docs / "paper.md").read_text()


def invoke(*arguments):
    return CliRunner().invoke(app, ["paper", *arguments])


def test_the_list_names_all():
    assert set(json.loads(invoke("--json").stdout)) == set(EXPERIMENTS)
    text = invoke().stdout
    assert all(name in text for name in EXPERIMENTS)


def test_a_wrong_name_is_told_the_nearest():
    said = invoke("tabl2", "--base", "lab-paper")
    assert said.exit_code == 2
    assert "did you mean 'table2'?" in said.stderr


def test_lines_are_printed_whole():
    said = invoke("table2", "--base", "lab-paper")
    lines = said.stdout.splitlines()
    assert len(lines) == 19
    assert all(line.startswith("sage-grpo train lab-paper ") for line in lines[:18])
    assert lines[18].startswith("sage-grpo eval base=lab-paper a-dance-none=")


@pytest.mark.slow
def test_cost_is_what_the_plan_says(tmp_path):
    """Of one run of a small Wan; the laboratory's is not planned."""
    pytest.importorskip("diffusers")
    from sage_grpo.models import contract
    from sage_grpo.models.wan import Wan

    folder = contract.make_checkpoint(Wan, tmp_path / "tiny")
    small = ["model.frames=5", "model.height=64", "model.width=64", f"model.path={folder}"]
    card = ["--gpu", "rtx4090-24g", "--json"]
    found = json.loads(invoke("figure4", "--base", "wan-1.3b-24gb-lora", *card, *small).stdout)
    said = CliRunner().invoke(app, ["plan", "wan-1.3b-24gb-lora", "run.iterations=100", *card, *small])
    assert found["cost"]["gpu_hours"] > 0
    assert found["cost"]["gpu_hours"] == pytest.approx(json.loads(said.stdout)["run"]["gpu_hours"])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_table_2_is_made_at_laboratory_size(tmp_path, monkeypatch):
    """All 18 runs, their evaluation and the table, in a short form; called again, nothing is trained anew."""
    monkeypatch.chdir(tmp_path)
    small = ["policy.prompts_per_iteration=1", "policy.batch_size=8", "policy.num_iterations=1", "gauge.every=0"]
    short = ["--base", "lab-paper", "--run", "--iterations", "1", "--limit", "1", "--workers", "2", "--json"]
    said = invoke("table2", *short, *small)
    assert said.exit_code == 0, said.stderr
    rows = json.loads(said.stdout)["table"]
    assert [(row["setting"], row["method"]) for row in rows[1:]] == [row[:2] for row in ROWS]
    assert {row["method"] for row in rows} == {"Base", *METHODS}
    assert {row["setting"] for row in rows} == {"", *SETTINGS}
    for row in rows:
        assert row["means"]["Overall"] == pytest.approx(sum(row["means"][name] for name in ("VQ", "MQ", "TA")))
    made = tmp_path / "runs" / "paper" / "table2"
    weights = {path: path.stat().st_mtime_ns for path in made.glob("*/checkpoints/*/manifest.json")}
    assert len(weights) == 18
    assert "| SAGE-GRPO | w/ Dual Moving KL |" in (made / "table2.md").read_text()
    assert invoke("table2", *short, *small).exit_code == 0
    assert weights == {path: path.stat().st_mtime_ns for path in made.glob("*/checkpoints/*/manifest.json")}
