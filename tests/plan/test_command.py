"""`sage-grpo plan` as a user meets it."""

import json

import pytest
from typer.testing import CliRunner

from plan.every import ask
from sage_grpo.cli import app
from sage_grpo.config import load_recipe
from sage_grpo.config.load import shipped_recipes
from sage_grpo.preflight.plan.hardware import GPUS
from sage_grpo.preflight.plan.layout import check_layout
from sage_grpo.preflight.plan.memory import PHASES
from sage_grpo.preflight.plan.show import remedies
from sage_grpo.preflight.plan.sweep import laid_out, parse_sweep


def run(*arguments):
    return CliRunner().invoke(app, ["plan", *arguments])


@pytest.mark.slow
def test_json_for_programs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = json.loads(run("lab", "--json", "--price", "2.5", "--gpu", "rtx4090-24g").stdout)
    assert {"tokens", "tflop_per_forward", "memory_per_rank", "passes", "seconds", "run", "interruptions"} <= set(told)
    assert told["run"]["cost"] == pytest.approx(2.5 * told["run"]["gpu_hours"])
    assert told["seconds"]["iteration"] == pytest.approx(sum(v for k, v in told["seconds"].items() if k != "iteration"))
    assert told["memory_per_rank"]["fits"]
    figures = told["range"]
    assert all(0 <= row["low"] <= row["expected"] <= row["high"] for row in figures.values())
    assert all(figures[name]["low"] < figures[name]["high"] for name in ("videos_per_gpu_hour", "gpu_hours", "cost"))
    assert figures["videos_per_gpu_hour"]["expected"] == told["videos_per_gpu_hour"]
    assert figures["cost"]["expected"] == told["run"]["cost"]
    assert {"matrices", "attention", "convolutions", "exposed"} <= set(told["assumed"])
    assert told["assumed"]["matrices"]["source"].endswith(".")


@pytest.mark.slow
def test_large_sample_videos_and_checkpoints_that_stay_are_counted(tmp_path):
    """Of a small network: four times the pixels take about four times the operations and the disk."""
    pytest.importorskip("diffusers")
    from sage_grpo.models import contract
    from sage_grpo.models.hunyuan15 import HunyuanVideo15

    folder = str(contract.make_checkpoint(HunyuanVideo15, tmp_path / "tiny"))
    sides = ["model.frames=5", "model.height=512", "model.width=512", f"model.path={folder}"]
    sides.append("tuning.gradient_checkpointing=false")  # nothing to propose
    recipe = ["hunyuan15-1gpu-lora", *sides, "gauge.every=0", "run.iterations=1000", "--json", "--gpu", "h100-80g"]
    larger = ["run.sample_steps=40", "run.sample_height=1024", "run.sample_width=1024", "run.keep_every=100"]
    plain, more = (json.loads(run(*recipe, *overrides).stdout) for overrides in ((), larger))
    assert more["passes"]["samples"] == 2 * plain["passes"]["samples"]
    seconds = [plan["seconds"]["gauge and samples"] for plan in (plain, more)]
    assert 7 < seconds[1] / seconds[0] < 2 * 16  # attention grows with the square
    assert more["disk"]["samples"] == pytest.approx(4 * plain["disk"]["samples"])
    kept = (more["disk"]["checkpoints"] - plain["disk"]["checkpoints"]) / plain["disk"]["checkpoint"]
    assert kept == 10


@pytest.mark.slow
def test_a_table_for_people():
    said = run("lab", "--explain").stdout
    assert "Memory of the fullest GPU" in said
    assert "GPU-hours" in said
    assert "not measured" in said
    assert "An estimate" in said  # where an assumption comes from


@pytest.mark.parametrize("recipe", shipped_recipes())
@pytest.mark.parametrize("mode", ["lora", "full"])
def test_every_phase_has_a_remedy(recipe, mode):
    tries = remedies(load_recipe(recipe, [f"tuning.mode={mode}"]))
    assert set(tries) == set(PHASES)
    assert all(any(sensible for _, sensible in options) for options in tries.values())


@pytest.mark.slow
def test_what_does_not_fit_is_answered_with_advice():
    """All weights and a short video: fullest when the optimizer steps."""
    said = dict(ask("wan-1.3b-24gb-lora", "full", "short"))
    assert set(said) == set(GPUS)
    told = " ".join(said["rtx4090-24g"].split())
    assert "does not fit" in told
    assert "fullest while it is in the phase 'step'; try tuning.offload_copies=true, then more GPUs" in told
    assert "does not fit" not in said["b200-180g"]


@pytest.mark.slow
def test_layouts_that_do_not_divide_are_answered_with_the_nearest_that_do():
    said = run("hunyuan15-64gpu", "--gpus", "60")
    assert said.exit_code == 2
    told = said.stderr
    assert "nearest layouts that work" in told
    assert "Traceback" not in told
    as_json = json.loads(run("hunyuan15-64gpu", "--gpus", "60", "--json").stdout)
    proposals = [line.split() for line in told.split("that work:")[1].strip().splitlines()]
    assert len(proposals) == 3
    assert as_json["nearest"] == proposals
    for changes in proposals:
        check_layout(load_recipe("hunyuan15-64gpu", ["parallel.processes=60", *changes]))


@pytest.mark.slow
def test_a_model_that_cannot_share_a_video_is_answered_with_layouts_that_work(tmp_path):
    (tmp_path / "recipe.yaml").write_text(
        "model: {type: sd3}\nrewards: [{type: motion}]\nparallel: {processes: 2, sequence: 2}"
    )
    said = run(str(tmp_path / "recipe.yaml"))
    assert said.exit_code == 2
    assert "cannot share one video; use parallel.sequence=1" in " ".join(said.stderr.split())
    assert "nearest layouts that work:\n  parallel.sequence=1" in said.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["lap"], "did you mean lab"),
        (["lab", "--gpu", "h100"], "did you mean 'h100-80g'"),
        (["lab", "--sweep", "gpu=1,2"], "gpus=1,2"),
        (["lab", "--sweep", "gpus=one"], "not whole numbers"),
        (["lab", "--calibration", "missing.yaml"], "there is no calibration"),
        (["lab", "--measured", "nowhere"], "is not a run"),
        (["lab", "policy.clipp=1"], "did you mean policy.clip"),
        (["lab", "policy.batch_size=7"], "batches of 7 (batch_size)"),
        (["lab", "policy.objective=nfd"], "did you mean 'nft'"),
    ],
)
def test_mistakes_are_told_in_a_sentence(arguments, words):
    said = run(*arguments)
    assert said.exit_code == 2
    assert words in said.stderr
    assert "Traceback" not in said.stderr


def test_no_layout_is_proposed_for_a_mistake_elsewhere():
    said = run("lab", "policy.objective=dpo")
    assert said.exit_code == 2
    assert "use policy.clip=null" in " ".join(said.stderr.split())
    assert "nearest layouts" not in said.stderr


def test_a_sweep_keeps_the_recipes_videos_while_they_divide(tmp_path, monkeypatch):
    config = load_recipe("hunyuan15-64gpu")
    assert laid_out(config, 64, 2, 1).rollouts == 64
    assert laid_out(config, 64, 1, 1).policy.batch_size == 1
    assert laid_out(config, 4096, 8, 1).rollouts == 512
    assert parse_sweep(["gpus=8,64", "sp=1,2"]) == parse_sweep(["gpus=8,64 sp=1,2"]) == {"gpus": [8, 64], "sp": [1, 2]}


@pytest.mark.slow
def test_a_sweep_is_a_table_and_a_picture(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = json.loads(run("lab", "--sweep", "gpus=1,2,3", "--json").stdout)
    assert [cell["gpus"] for cell in told["sweep"]] == [1, 2, 3]
    assert (tmp_path / "plan.png").stat().st_size > 10_000
    rates = [cell["videos_per_gpu_hour"] for cell in told["sweep"] if cell["works"]]
    assert rates[0] >= rates[-1]


@pytest.mark.slow
def test_a_run_is_measured_and_the_plan_takes_its_seconds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ["run.iterations=3", "run.sample_every=0", "gauge.every=0", "run.trackers=[]"]
    assert CliRunner().invoke(app, ["train", "lab", "run.out=runs/a", *small]).exit_code == 0
    told = json.loads(run("lab", *small, "--measured", "runs/a", "--json").stdout)
    rows = [json.loads(line) for line in (tmp_path / "runs/a/metrics.jsonl").read_text().splitlines()]
    spent = sorted(row["seconds/rollout"] + row["seconds/update"] for row in rows[1:])
    assert told["seconds"]["iteration"] == pytest.approx(sum(spent) / 2, rel=0.3)
    again = json.loads(run("lab", *small, "--calibration", "calibration.yaml", "--json").stdout)
    assert again["seconds"]["iteration"] == pytest.approx(told["seconds"]["iteration"], rel=0.01)
