"""The released checkpoint becomes a folder that is whole, safe to read and the same network; mistakes are told."""

import json
import pickle
import sys

import pytest

pytest.importorskip("peft")
pytest.importorskip("transformers")

import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from sage_grpo.cli import app
from sage_grpo.config import ConfigError, load_recipe
from sage_grpo.config.load import shipped_recipes
from sage_grpo.preflight.rehearsal.toy import Rehearsal, find_rewards
from sage_grpo.registry import resolve_reward
from sage_grpo.rewards.errors import MissingWeights, RewardError
from sage_grpo.rewards.videoalign import convert as videoalign_convert
from sage_grpo.rewards.videoalign.convert import convert
from sage_grpo.rewards.videoalign.model import VideoAlign
from sage_grpo.training import build
from support import Trap
from videoalign_original import RUBRIC, release, weights

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("base_model.model.visual.blocks.1.norm1.bias"), "1 of .* tensors are missing"),
        (lambda s: s.pop("base_model.model.model.layers.1.mlp.up_proj.base_layer.weight"), "nothing to be added to"),
        (
            lambda s: s.pop("base_model.model.model.layers.1.mlp.up_proj.lora_B.default.weight"),
            "nothing to be added to",
        ),
        (lambda s: s.pop("base_model.model.rm_head.weight"), "rm_head.weight should be"),
        (
            lambda s: s.update({"base_model.model.model.extra.weight": torch.ones(1)}),
            "not of this network, e.g. language",
        ),
        (lambda s: s.update({"base_model.model.model.norm.weight": torch.ones(3)}), "another shape"),
        (lambda s: s.update({"base_model.model.rm_head.weight": torch.ones(4, 64)}), "rm_head.weight should be"),
        (lambda s: s.update({"step": 3}), "not a dictionary of tensors"),
    ],
)
def test_every_tensor_has_its_place(change, message, tmp_path):
    state = weights(1)
    change(state)
    place, _ = release(tmp_path, state)
    with pytest.raises(RewardError, match=message):
        convert(place, tmp_path / "converted")
    assert not (tmp_path / "converted").exists()


def plain_pickle(value, path):
    path.write_bytes(pickle.dumps(value, protocol=2))


@pytest.mark.parametrize("save", [torch.save, plain_pickle])
def test_a_pickle_that_runs_code_is_refused(save, source, tmp_path):
    save({"a": Trap(tmp_path / "ran")}, source / "checkpoint-11352" / "model.pth")
    with pytest.raises(RewardError, match=r"model\.pth is refused: it holds more than tensors"):
        convert(source, tmp_path / "converted")
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "converted").exists()


def test_no_pickle_at_run_time(folder, monkeypatch):
    monkeypatch.setattr(torch, "load", lambda *a, **k: pytest.fail("unpickled"))
    VideoAlign(str(folder))
    assert {path.suffix for path in folder.iterdir()} <= {".json", ".safetensors", ".txt", ".jinja"}


def test_convert_writes_whole_or_nothing(source, tmp_path, monkeypatch):
    def full_disk(*args, **kwargs):
        raise OSError("no space left")

    monkeypatch.setattr(videoalign_convert, "save_file", full_disk)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(OSError, match="no space"):
        convert(source, tmp_path / "converted")
    assert sorted(tmp_path.iterdir()) == before


def test_convert_keeps_half_precision_if_asked(source, tmp_path):
    convert(source, tmp_path / "converted", dtype="bfloat16")
    state = load_file(tmp_path / "converted" / "model.safetensors")
    assert {str(v.dtype) for n, v in state.items() if n != "rm_head.weight"} == {"torch.bfloat16"}
    assert state["rm_head.weight"].dtype == torch.float32


def run(*arguments):
    result = CliRunner().invoke(app, ["rewards", "convert", *map(str, arguments)])
    return result.exit_code, " ".join((result.output + (result.stderr or "")).split())


def test_command(source, tmp_path):
    code, text = run(source, tmp_path / "made", "--json")
    assert code == 0, text
    settings = json.loads((tmp_path / "made" / "videoalign.json").read_text())
    assert settings["normalisation"]["MQ"] == [1.1646, 1.3811]
    assert list(settings["source"]) == ["model.pth"]
    assert len(settings["source"]["model.pth"]) == 64
    assert (tmp_path / "made" / "rubric.txt").read_bytes().decode() == RUBRIC
    code, text = run(source, tmp_path / "made")
    assert (code, "is there already" in text) == (2, True)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda s: (s / "model_config.json").unlink(), "no model_config.json"),
        (lambda s: (s / "checkpoint-11352" / "model.pth").unlink(), "no checkpoint-N with model.pth"),
        (lambda s: (s / "checkpoint-11352" / "model.pth").write_bytes(b"PK\x03\x04"), "downloaded whole"),
        (lambda s: (s.parents[1] / "prompt_template.py").unlink(), "name your copy with --rubric"),
        (lambda s: (s.parents[1] / "prompt_template.py").write_text("X = 1"), "has no DETAILED_PROMPT"),
        (lambda s: (s / "prompt_template.py").write_text("DETAILED_PROMPT_WITH_SPECIAL_TOKEN = 'x'"), "once each"),
        (lambda s: (s / "model_config.json").write_text('{"data_config": {"num_frames": 8}}'), "num_frames is 8"),
        (lambda s: (s / "model_config.json").write_text("{}"), "no peft_lora_config.lora_alpha"),
    ],
)
def test_command_tells_what_is_wrong(spoil, message, source, tmp_path):
    spoil(source)
    code, text = run(source, tmp_path / "made")
    assert code == 2, text
    assert message in text
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, ConfigError, "missing a required argument: 'path'"),
        ({"path": "x", "fpss": 3}, ConfigError, "has no option 'fpss'; did you mean 'fps'"),
        ({"path": "nowhere"}, MissingWeights, "sage-grpo rewards convert SOURCE nowhere"),
        ({"path": "."}, RewardError, "is not converted yet"),
        ({"path": "{folder}", "dtype": "float8"}, RewardError, "float32 or bfloat16"),
        ({"path": "{folder}", "device": "nonsense"}, RewardError, "cannot be put on device 'nonsense'"),
        ({"path": "{folder}", "fps": 0}, RewardError, "fps > 0"),
    ],
)
def test_options(options, error, message, folder):
    options = {key: str(folder) if value == "{folder}" else value for key, value in options.items()}
    recipe = load_recipe("lab", []).model_dump() | {"rewards": [{"type": "videoalign", "options": options}]}
    with pytest.raises(error, match=message):
        build.build_rewards(load_recipe(recipe))


def test_a_missing_library_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("sage_grpo.rewards.videoalign")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(
        ConfigError,
        match=r"reward 'videoalign' needs accelerate: pip install 'sage-grpo\[models\]'",
    ):
        resolve_reward("videoalign")


@pytest.mark.parametrize("weights", [{"VQ": 1.0, "MQ": 0.5, "TA": 2.0}, {}])
def test_a_rehearsal_does_without_the_checkpoint_and_says_so(weights):
    entry = {"type": "videoalign", "weights": weights, "options": {"path": "nowhere", "device": "cuda"}}
    told = Rehearsal("x")
    (part,), given = find_rewards(load_recipe(load_recipe("lab", []).model_dump() | {"rewards": [entry]}), told)
    assert tuple(part.names) == ("VQ", "MQ", "TA")
    assert given == tuple(weights.values() or (1.0, 1.0, 1.0))
    assert "nowhere is not there" in told.stand_ins[0]


def test_a_rehearsal_uses_the_checkpoint_where_there_is_one(folder):
    entry = {"type": "videoalign", "options": {"path": str(folder), "device": "cuda"}}
    told = Rehearsal("x")
    (part,), _ = find_rewards(load_recipe(load_recipe("lab", []).model_dump() | {"rewards": [entry]}), told)
    assert isinstance(part.rewards[0], VideoAlign)
    assert not told.stand_ins


def test_shipped_recipes_use_it():
    used = [
        recipe for name in shipped_recipes() for recipe in load_recipe(name, []).rewards if recipe.type == "videoalign"
    ]
    assert len(used) >= 7
    for entry in used:
        assert set(entry.weights) == {"VQ", "MQ", "TA"}
        assert entry.options["fps"] in (16, 24)
