"""Every shipped recipe is acted out at toy size; the rehearsal sees what a real run would trip over."""

import json

import pytest
import yaml
from typer.testing import CliRunner

from sage_grpo.cli import app
from sage_grpo.config import ParallelConfig, dump_recipe, load_recipe
from sage_grpo.config.load import read_settings, shipped_recipes
from sage_grpo.distributed.launch import launch
from sage_grpo.preflight.rehearsal.toy import Rehearsal, find_monitors, shrink, toy_layout
from sage_grpo.registry import resolve_model
from sage_grpo.training import build
from sweeps import further

runner = CliRunner()


def rehearse(*arguments):
    result = runner.invoke(app, ["rehearse", *map(str, arguments), "--json"])
    return result, json.loads(result.stdout.splitlines()[-1]) if result.exit_code == 0 else None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "processes"),
    [
        ("hunyuan15-64gpu", 4),  # shards, of which two share a video
        ("hunyuan15-64gpu-released", 4),
        further("hunyuan15-8gpu-lora", 2),
    ],
)
def test_a_recipe_runs_in_its_own_layout(name, processes, tmp_path):
    result, told = rehearse(name, "--out", tmp_path / "r")
    assert result.exit_code == 0, result.output
    assert told["ok"]
    check_facts(told["facts"], processes)
    assert {"export", "sample", "resume, second iteration"} <= set(told["covered"])
    assert f"processes: {processes} (2 shards" in told["reduced"][0]
    assert (tmp_path / "r" / "samples" / "sheet.png").exists()
    rows = [json.loads(line) for line in (tmp_path / "r" / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] if "iteration" in row else row["step"] for row in rows] == [1, 2]


def check_facts(facts, processes):
    assert facts["processes"] == processes
    assert facts["iterations"] == 2
    assert facts["updates"] >= 2
    assert facts["changed tensors"] > 0.8 * facts["of tensors"]


# one launch each
FIRST = (
    "hunyuan15-1gpu-lora",
    "hunyuan15-i2v-8gpu-lora",
    "lab",
    "lab-fast",
    "ltx2-8gpu-lora",
    "qwen-image-1gpu-lora",
    "sound",
    "text",
    "wan-1.3b-24gb-lora-awm",
    "wan-1.3b-24gb-lora-fast",
    "z-image-24gb-lora",
)
OTHERS = (
    "hunyuan15-1gpu-lora-fast",
    "hunyuan15-8gpu-lora",
    "hunyuan15-8gpu-lora-awm",
    "hunyuan15-8gpu-lora-fast",
    "hunyuan15-64gpu-480p",
    "hunyuan15-64gpu-480p-fast",
    "hunyuan15-64gpu-b",
    "hunyuan15-64gpu-b-fast",
    "hunyuan15-64gpu-fast",
    "hunyuan15-64gpu-released-a",
    "hunyuan15-8gpu",
    "hunyuan15-i2v-8gpu-lora-fast",
    "lab-paper",
    "lab-paper-fast",
    "wan-1.3b-24gb-lora",
)


def choices(values, place=""):
    """Settings of a recipe that are no numbers, by place."""
    if isinstance(values, dict):
        return {found for key, value in values.items() for found in choices(value, f"{place}.{key}")}
    if isinstance(values, list):
        return {found for value in values for found in choices(value, place)}
    number = isinstance(values, int | float) and not isinstance(values, bool)
    return set() if number or place.endswith((".path", ".out")) else {(place, values)}


def test_what_ci_leaves_out_differs_in_numbers_alone():
    recipes = {name: choices(read_settings(name)) for name in shipped_recipes()}
    rehearsed = {*FIRST, "hunyuan15-64gpu", "hunyuan15-64gpu-released"}
    assert rehearsed | {*OTHERS} == {*recipes}
    assert set().union(*(recipes[name] for name in OTHERS)) <= set().union(*(recipes[name] for name in rehearsed))


@pytest.mark.slow
@pytest.mark.parametrize("names", [FIRST, further(OTHERS, id="others")], ids=["first", "others"])
def test_recipes_run_on_two_processes(names, tmp_path):
    for name in names:
        config, folder = load_recipe(name), tmp_path / name
        folder.mkdir()
        small = find_monitors(shrink(config, folder, Rehearsal(name), 2), Rehearsal(name))
        (folder / "toy.yaml").write_text(dump_recipe(small))
        adapter = resolve_model(config.model.type)
        if build.resizable(adapter):
            adapter.tiny().save_pretrained(str(folder / "checkpoint"))
    launch(2, "rehearsal.several", [str(tmp_path), *names], tmp_path)
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert list(facts) == list(names)
    for told in facts.values():
        check_facts(told, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lab", "wan-1.3b-24gb-lora"])
def test_the_quick_form_is_one_process(name, tmp_path):
    result, told = rehearse(name, "--processes", 1, "--out", tmp_path / "r")
    assert result.exit_code == 0, result.output
    check_facts(told["facts"], 1)


def layout(**axes):
    return ParallelConfig(**axes)


@pytest.mark.parametrize(
    ("real", "processes", "small"),
    [
        ({"processes": 8}, None, {"processes": 2}),
        ({"processes": 64, "sequence": 2}, None, {"processes": 4, "sequence": 2}),
        ({"processes": 8, "sequence": 8}, None, {"processes": 2, "sequence": 2}),
        ({"processes": 16, "replicate": 4}, None, {"processes": 4, "replicate": 2}),
        ({"processes": 64, "sequence": 4, "replicate": 2}, None, {"processes": 4, "sequence": 2, "replicate": 2}),
        ({"processes": 8, "sequence": 4, "ring": 2}, None, {"processes": 4, "sequence": 2}),
        ({"processes": 1}, None, {"processes": 1}),
        ({"processes": 1}, 2, {"processes": 2}),
        ({"processes": 64, "sequence": 2}, 2, {"processes": 2, "sequence": 2}),
        ({"processes": 64, "sequence": 2}, 3, {"processes": 3}),
        ({"processes": 64, "sequence": 2}, 1, {"processes": 1}),
    ],
)
def test_every_axis_of_a_layout_is_kept(real, processes, small):
    assert toy_layout(layout(**real), processes) == layout(**small)


@pytest.mark.parametrize(("rank", "alpha", "small"), [(64, 128, 8), (64, None, None), (2, 6, 6)])
def test_a_smaller_rank_keeps_its_scale(rank, alpha, small, tmp_path):
    """What an adapter adds is scaled by alpha / rank."""
    tuning = {"mode": "lora", "rank": rank, "alpha": alpha}
    toy = shrink(load_recipe({"tuning": tuning}), tmp_path, Rehearsal("scale")).tuning
    assert (toy.rank, toy.alpha) == (min(rank, 4), small)


@pytest.mark.slow
def test_a_process_that_fails_is_named(tmp_path, monkeypatch):
    """One of two processes fails in its reward: its words reach the user, not those of the one that waited."""
    (tmp_path / "moody_rewards.py").write_text(
        "import os\n\ndef one(videos, prompts):\n"
        "    if os.environ.get('RANK') == '1':\n        raise OSError('the scorer went home')\n"
        "    return [float(v.float().mean()) for v in videos]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    result, _ = rehearse("lab-fast", 'rewards=[{type: "moody_rewards:one"}]', "--processes", 2)
    assert result.exit_code == 2
    words = " ".join((result.stderr or result.output).split())
    assert "process 1 of 2" in words
    assert "the scorer went home" in words


@pytest.mark.parametrize("name", [n for n in shipped_recipes() if not n.startswith("lab")])
def test_every_number_of_a_recipe_is_explained(name):
    for line in shipped_recipes()[name].read_text().splitlines():
        key, _, value = line.strip().partition(":")
        if key not in ("seed", "width", "type", "path", "out") and any(c.isdigit() for c in value.split("#")[0]):
            assert "#" in line, f"{name}: {line}"


@pytest.mark.parametrize("name", [n for n in shipped_recipes() if "64gpu" in n])
def test_reference_layout(name):
    """2 videos × 32 replicas = 64 rollouts = 16 prompts × 4."""
    recipe = read_settings(name)
    assert recipe["parallel"] == {"processes": 64, "sequence": 2}
    assert (recipe["policy"]["batch_size"], recipe["policy"]["num_generations"]) == (2, 4)
    assert recipe["policy"]["prompts_per_iteration"] == 16
    assert recipe["model"]["frames"] == 81


RECIPE = {
    "model": {"type": "ltx", "path": "somewhere/else"},
    "tuning": {"mode": "lora", "attention": "flash", "rank": 64, "alpha": 128},
    "sampling": {"window": {"size": 2}},
    "rewards": [{"type": "nowhere.at.all:Score", "weights": {"A": 1.0, "B": 0.5}}],
    "run": {"trackers": ["wandb"]},
}


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [None, further("aot_eager")])
def test_stand_ins_are_told(compiled, tmp_path):
    tuning = RECIPE["tuning"] | {"compile": compiled}
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(RECIPE | {"parallel": {"processes": 4}, "tuning": tuning}))
    result, told = rehearse(tmp_path / "r.yaml", "policy.prompts_per_iteration=4", "--processes", 1)
    assert result.exit_code == 0, result.output
    words = "\n".join(told["stand_ins"])
    for expected in ("native for flash", "wandb", "prompts", "names A, B"):
        assert expected in words
    assert "processes: 1 for 4 (4 shards)" in told["reduced"]


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
    pytest.importorskip("diffusers")
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


@pytest.mark.slow
def test_a_reward_that_is_always_the_same(tmp_path, monkeypatch):
    """Nothing would be learned: told in a sentence."""
    (tmp_path / "flat_rewards.py").write_text("def one(videos, prompts):\n    return [1.0] * len(videos)\n")
    monkeypatch.syspath_prepend(tmp_path)
    result, _ = rehearse("lab-fast", 'rewards=[{type: "flat_rewards:one"}]')
    assert result.exit_code == 2
    assert "changed no weight" in " ".join((result.stderr or result.output).split())
