"""What a run trained, loaded by diffusers alone with the lines of the export's README: the same video as ours."""

import json
from itertools import product

import pytest

pytest.importorskip("diffusers")

import torch
from safetensors import safe_open
from typer.testing import CliRunner

from sage_grpo.cli import app
from sage_grpo.core.protocols import Prompt
from sage_grpo.core.rollout import keyed_noise, sample
from sage_grpo.inference.reopen import open_run
from sage_grpo.lab.shapes.model import ShapesModel
from sage_grpo.math.kernels import kernel_table
from sage_grpo.models import contract
from sage_grpo.registry import resolve_model
from sage_grpo.training.trainer import Trainer
from sage_grpo.videos import frame_rate, read_mp4
from sage_grpo.weights.export import load_adapters
from sweeps import further

pytestmark = pytest.mark.slow

runner = CliRunner()
FIRST = {  # what CI exports: each model once, each way twice or more
    ("hunyuan15", "lora", False),
    ("hunyuan15-i2v", "full", False),
    ("wan", "lora", True),
    ("wan2.2", "lora", False),
    ("wan2.2", "lora", True),
    ("ltx", "full", False),
    ("ltx2", "lora", False),
    ("sd3", "full", False),
    ("qwen-image", "lora", True),
    ("z-image", "lora", False),
}
TYPES = ("hunyuan15", "hunyuan15-i2v", "wan", "wan2.2", "ltx", "ltx2", "sd3", "qwen-image", "z-image")

RATES = {"qwen-image": 0.3}  # of four tokens and a long text, attention has little to say at first


def brightness(videos, prompts):
    return [video.float().mean().item() for video in videos]


def train(kind, folder, *, ema=0.5, sampling=None, **tuning):
    adapter = resolve_model(kind)
    path = contract.make_checkpoint(adapter, folder / "base")
    frames, height, width = adapter.tiny_size
    size = {"frames": frames, "height": height, "width": width}
    trainer = Trainer(
        rewards=[brightness],
        config={
            "model": {"type": kind, "path": path, **size, "guidance_scale": 3.0, "options": dict(adapter.tiny_options)},
            "tuning": {"rank": 4, "alpha": 8, **tuning},
            "sampling": sampling or {"steps": 4},
            "policy": {"prompts_per_iteration": 1, "num_generations": 2, "batch_size": 2},
            "optimizer": {"lr": RATES.get(kind, 3e-2), "ema": ema},
            "run": {"out": str(folder / "run"), "iterations": 2, "sample_every": 0, "trackers": [], "save_every": 1},
        },
        prompts=[{"prompt": p.text, **p.columns} for p in contract.prompts_for(adapter(adapter.tiny(), **size))],
    )
    trainer.train()
    return adapter


def loaded_by_readme(folder):
    names = {}
    exec((folder / "README.md").read_text().split("```python\n")[1].split("```")[0], names)
    names["pipe"].set_progress_bar_config(disable=True)
    return names["pipe"]


def video(adapter, model, pipe):
    """Ours from the run, and that of plain diffusers from the export."""
    prompt, key = contract.prompts_for(model)[0], ("export",)
    noise = keyed_noise(model.latent_shape(prompt), [(*key, "initial")], model.device)
    caller = adapter(
        pipe, frames=model.frames, height=model.height, width=model.width, guidance_scale=3.0, **adapter.tiny_options
    )
    expected = caller.pipeline_latents(contract.through_pipeline(caller, prompt, noise, "latent", 4))
    table = kernel_table("ode", pipe.scheduler.sigmas.double(), 0.0)
    return sample(model, [prompt], table, [key], [key]).x0, expected


@pytest.mark.parametrize(
    ("kind", "mode", "merge"),
    [
        case if case in FIRST else further(*case)
        for case in product(TYPES, ("lora", "full"), (False, True))
        if case[1:] != ("full", True)
    ],
)
def test_same_video_from_diffusers_alone(kind, mode, merge, tmp_path):
    adapter = train(kind, tmp_path, mode=mode)
    result = runner.invoke(
        app, ["export", str(tmp_path / "run"), "--out", str(tmp_path / "x"), "--json", *(["--merge"] if merge else [])]
    )
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout.splitlines()[-1])
    assert (told["kind"], told["averaged"]) == ("full" if merge else mode, True)
    run = open_run(tmp_path / "run")
    got, expected = video(adapter, run.model, loaded_by_readme(tmp_path / "x"))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    untrained, _ = video(adapter, contract.load(adapter, str(tmp_path / "base")), loaded_by_readme(tmp_path / "x"))
    assert (got - untrained).abs().max() > 0.05, "training changed nothing: the comparison would prove nothing"


@pytest.mark.parametrize("kind", ["hunyuan15", "wan2.2", *map(further, ("wan", "z-image", "ltx2", "qwen-image"))])
def test_an_adapter_for_high_noise_is_switched_off_as_the_readme_says(kind, tmp_path):
    early = {"steps": 8, "window": {"size": 1, "range": [0, 0.4]}}
    adapter = train(kind, tmp_path, mode="lora", min_sigma=0.9, sampling=early)
    arguments = ["export", str(tmp_path / "run"), "--out", str(tmp_path / "x")]
    merged = runner.invoke(app, [*arguments, "--merge"])
    assert merged.exit_code == 2
    assert "leave --merge out" in merged.output
    assert runner.invoke(app, arguments).exit_code == 0
    run, pipe = open_run(tmp_path / "run"), loaded_by_readme(tmp_path / "x")
    with safe_open(tmp_path / "x" / "pytorch_lora_weights.safetensors", "pt") as file:
        assert file.metadata()["min_sigma"] == "0.9"
    for _ in range(2):  # it is switched on again for the next video
        got, expected = video(adapter, run.model, pipe)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    run.model.min_sigma = 0.0
    everywhere, _ = video(adapter, run.model, pipe)
    if kind != "wan2.2":  # its second expert, which begins at this noise level, has not been trained at all
        assert (got - everywhere).abs().max() > 1e-3, "the limit changes nothing: the comparison would prove nothing"


@pytest.mark.parametrize("kind", ["hunyuan15", "wan"])
def test_a_merged_update_is_the_adapter_of_a_run_in_bfloat16(kind, tmp_path):
    """The weights of such a run are too coarse for its update; the merged checkpoint has it all the same."""
    adapter = train(kind, tmp_path, mode="lora", precision="bfloat16")
    for name, arguments in (("merged", ["--merge"]), ("adapter", []), ("coarse", ["--merge", "--dtype", "bfloat16"])):
        result = runner.invoke(app, ["export", str(tmp_path / "run"), "--out", str(tmp_path / name), *arguments])
        assert result.exit_code == 0, result.output
        assert ("survives" in result.output) == (name != "adapter")
        assert ("## Precision" in (tmp_path / name / "README.md").read_text()) == (name != "adapter")
    run = open_run(tmp_path / "run")
    base = adapter.pipeline_class.from_pretrained(run.config.model.path, dtype=torch.bfloat16).to(torch.float32)
    load_adapters(base, tmp_path / "adapter")
    pipes = loaded_by_readme(tmp_path / "merged"), base, loaded_by_readme(tmp_path / "coarse")
    merged, beside, coarse = (video(adapter, run.model, pipe.to(torch.float32))[1] for pipe in pipes)
    torch.testing.assert_close(merged, beside, rtol=1e-4, atol=1e-4)
    off, rounded = ((x - beside).abs().max() for x in (merged, coarse))
    assert rounded > 10 * off, "rounding changed nothing: the comparison would prove nothing"


def test_adapter_file_holds_the_policy_alone(tmp_path):
    """The anchor and the average are adapters too, and stay at home; plain pickle-free safetensors."""
    train("wan2.2", tmp_path, mode="lora")
    runner.invoke(app, ["export", str(tmp_path / "run"), "--out", str(tmp_path / "x"), "--dtype", "bfloat16"])
    for place in (tmp_path / "x", tmp_path / "x" / "transformer_2"):
        with safe_open(place / "pytorch_lora_weights.safetensors", "pt") as file:
            assert all(key.endswith((".lora_A.weight", ".lora_B.weight")) for key in file.keys())  # noqa: SIM118
            assert {file.get_tensor(key).dtype for key in file.keys()} == {torch.bfloat16}  # noqa: SIM118
    assert not [p for p in (tmp_path / "x").rglob("*") if p.suffix in (".bin", ".pt", ".pth", ".pkl")]


@pytest.mark.parametrize("mode", ["lora", "full"])
def test_half_precision_as_diffusers_loads_it(mode, tmp_path):
    """Some layers of Wan, such as the time's, lose too much in half precision: diffusers keeps them, and so do we."""
    adapter = train("wan", tmp_path, mode=mode, targets=["to_q", "time_embedder.linear_1"])
    arguments = ["--dtype", "bfloat16", *(["--merge"] if mode == "lora" else [])]
    result = runner.invoke(app, ["export", str(tmp_path / "run"), "--out", str(tmp_path / "x"), *arguments])
    assert result.exit_code == 0, result.output
    with safe_open(tmp_path / "x" / "transformer" / "diffusion_pytorch_model.safetensors", "pt") as file:
        written = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    kind = type(adapter.tiny().transformer)
    loaded = kind.from_pretrained(tmp_path / "x" / "transformer", dtype=torch.bfloat16).state_dict()
    assert {key: w.dtype for key, w in written.items()} == {key: w.dtype for key, w in loaded.items()}
    run = open_run(tmp_path / "run")
    if mode == "full":  # what is kept is kept whole
        exact = run.model.module.state_dict()
        kept = [key for key, w in written.items() if w.dtype == torch.float32]
        assert any("time_embedder" in key for key in kept)
        assert all(torch.equal(written[key], exact[key]) for key in kept)


def test_last_or_averaged_weights(tmp_path):
    train("wan", tmp_path, mode="lora", ema=0.9)
    averaged, last = open_run(tmp_path / "run"), open_run(tmp_path / "run", average=False)
    assert (averaged.averaged, last.averaged) == (True, False)
    one, other = (dict(run.model.module.named_parameters()) for run in (averaged, last))
    assert any(not torch.equal(one[name], other[name]) for name in one if ".lora_B.default" in name)


def test_an_earlier_checkpoint_and_wrong_paths(tmp_path):
    train("wan", tmp_path, mode="lora")
    first = tmp_path / "run" / "checkpoints" / "step-00000001"
    assert open_run(first).iteration == 1
    for path, message in (
        (tmp_path, "is not a run"),
        (first.with_name("step-00000009"), "checkpoints of this run: step-00000001, step-00000002"),
    ):
        result = runner.invoke(app, ["export", str(path), "--out", str(tmp_path / "y")])
        assert result.exit_code == 2
        assert message in " ".join((result.stderr or result.output).split())
    result = runner.invoke(app, ["export", str(first), "--out", str(tmp_path)])
    assert "is there already" in " ".join((result.stderr or result.output).split())
    assert not list(tmp_path.glob(".*.part"))


def test_sample_a_run_beside_the_untrained_model(tmp_path):
    train("wan", tmp_path, mode="lora")
    result = runner.invoke(
        app, ["sample", str(tmp_path / "run"), "--prompt", "a cat", "--compare", "--out", str(tmp_path / "s"), "--json"]
    )
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout.splitlines()[-1])
    assert told["files"] == ["00-untrained.mp4", "00-iteration-2.mp4", "sheet.png"]
    assert all((tmp_path / "s" / name).stat().st_size for name in told["files"])
    assert frame_rate(tmp_path / "s" / "00-untrained.mp4") == 16  # Wan's own


def test_sample_writes_pictures_for_picture_models(tmp_path):
    train("sd3", tmp_path, mode="lora")
    result = runner.invoke(app, ["sample", str(tmp_path / "run"), "--prompt", "a cat", "--out", str(tmp_path / "s")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "s" / "00.png").exists()


def test_sample_needs_an_image_a_prompt(tmp_path):
    result = runner.invoke(app, ["sample", "lab", "--prompt", "a", "--image", "x.png", "--image", "y.png"])
    assert result.exit_code == 2
    assert "2 --image for 1 --prompt" in (result.stderr or result.output)


def test_sample_a_recipe_without_training(tmp_path):
    result = runner.invoke(app, ["sample", "lab", "--count", "2", "--out", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "01.mp4").exists()


def test_sample_gives_each_prompt_its_own_seed(tmp_path):
    """Two equal prompts are two videos; the second is what the next seed gives alone."""

    def sampled(name, seed, count):
        arguments = ["sample", "lab", "--seed", str(seed), "--out", str(tmp_path / name)]
        result = runner.invoke(app, [*arguments, *["--prompt", "a red circle moving left"] * count])
        assert result.exit_code == 0, result.output
        return [read_mp4(tmp_path / name / f"{i:02d}.mp4") for i in range(count)]

    (first, second), (alone,) = sampled("both", 7, 2), sampled("alone", 8, 1)
    assert (first != second).any()
    assert (second == alone).all()


@pytest.mark.parametrize("mode", ["full", "lora"])
def test_the_lab_model_is_exported_as_a_recipe_model(tmp_path, mode):
    recipe = {
        "tuning": {"mode": mode, "rank": 2},
        "sampling": {"steps": 4},
        "optimizer": {"lr": 1e-2},
        "policy": {"prompts_per_iteration": 1, "num_generations": 2, "batch_size": 2},
        "run": {"out": str(tmp_path / "run"), "iterations": 1, "sample_every": 0, "trackers": []},
    }
    Trainer(rewards=[brightness], config=recipe).train()
    arguments = ["export", str(tmp_path / "run"), "--out", str(tmp_path / "x")]
    if mode == "lora":
        refused = runner.invoke(app, arguments)
        assert refused.exit_code == 2
        assert "use --merge" in " ".join((refused.stderr or refused.output).split())
        arguments.append("--merge")
    assert runner.invoke(app, arguments).exit_code == 0
    again = ShapesModel.from_pretrained(tmp_path / "x")
    run = open_run(tmp_path / "run")
    keys, prompts = [("x",)], [Prompt("a red circle moving left")]
    table = kernel_table("ode", torch.tensor([1.0, 0.5, 0.0], dtype=torch.float64), 0.0)
    one, other = (sample(m, prompts, table, keys, keys).x0 for m in (again, run.model))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
