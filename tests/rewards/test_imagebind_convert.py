"""ImageBind's released file becomes a folder that is whole and safe to read; mistakes are told."""

import hashlib
import json

import pytest

pytest.importorskip("transformers")

import torch
from typer.testing import CliRunner

from imagebind_original import SIZES, release, weights
from sage_grpo.cli import app
from sage_grpo.config import ConfigError, load_recipe
from sage_grpo.preflight.rehearsal.toy import Rehearsal, find_rewards
from sage_grpo.rewards.errors import MissingWeights, RewardError
from sage_grpo.rewards.imagebind import convert as imagebind_convert
from sage_grpo.rewards.imagebind.convert import convert
from sage_grpo.rewards.imagebind.model import ImageBindReward
from sage_grpo.training import build
from support import Trap

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("imagebind")
    convert(release(place), place / "converted", sizes=SIZES)
    return place / "converted"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("modality_trunks.audio.blocks.1.norm_1.bias"), r"1 of \d+ tensors are missing, e.g. audio"),
        (lambda s: s.pop("modality_trunks.audio.blocks.0.attn.bias_v"), r"missing, .*spare_value"),
        (lambda s: s.update({"modality_trunks.smell.a": torch.ones(1)}), "not of this network, e.g. modality_trunks"),
        (lambda s: s.update({"modality_heads.vision.3.weight": torch.ones(1)}), "not of this network, e.g. vision.3"),
        (lambda s: s.update({"modality_heads.vision.2.weight": torch.ones(3, 32)}), "another shape, e.g. vision.proj"),
        (lambda s: s.update({"step": 3}), "not a dictionary of tensors"),
    ],
)
def test_every_tensor_has_its_place(change, message, tmp_path):
    state = weights()
    change(state)
    with pytest.raises(RewardError, match=message):
        convert(release(tmp_path, state), tmp_path / "converted", sizes=SIZES)
    assert not (tmp_path / "converted").exists()


def test_a_pickle_that_runs_code_is_refused(tmp_path):
    source = release(tmp_path, {"a": Trap(tmp_path / "ran")})
    with pytest.raises(RewardError, match=r"imagebind_huge\.pth is refused: it holds more than tensors"):
        convert(source, tmp_path / "converted", sizes=SIZES)
    assert not (tmp_path / "ran").exists()


def test_no_pickle_at_run_time(folder, monkeypatch):
    monkeypatch.setattr(torch, "load", lambda *a, **k: pytest.fail("unpickled"))
    ImageBindReward(str(folder))
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_convert_writes_whole_or_nothing(tmp_path, monkeypatch):
    def full_disk(*args, **kwargs):
        raise OSError("no space left")

    monkeypatch.setattr(imagebind_convert, "save_file", full_disk)
    source = release(tmp_path)
    with pytest.raises(OSError, match="no space"):
        convert(source, tmp_path / "converted", sizes=SIZES)
    assert list(tmp_path.iterdir()) == [source]


def run(*arguments):
    result = CliRunner().invoke(app, ["rewards", "convert", *map(str, arguments)])
    return result.exit_code, " ".join((result.output + (result.stderr or "")).split())


def test_command(tmp_path, monkeypatch):
    source = release(tmp_path)
    code, text = run(source, tmp_path / "made")
    assert (code, "tensors have another shape" in text or "are missing" in text) == (2, True)  # not the released sizes
    monkeypatch.setattr(imagebind_convert, "RELEASED", SIZES)
    code, text = run(source, tmp_path / "made")
    assert code == 0, text
    assert "type: imagebind" in text
    settings = json.loads((tmp_path / "made" / "config.json").read_text())
    assert settings["source"] == {"imagebind_huge.pth": hashlib.sha256(source.read_bytes()).hexdigest()}
    assert settings["vision"] == SIZES["vision"]
    for arguments, message in (
        ((source, tmp_path / "made"), "is there already"),
        ((tmp_path / "other.pth", tmp_path / "new"), "is not there: it is imagebind_huge.pth"),
        ((source, tmp_path / "new", "--dtype", "bfloat16"), "--dtype are for VideoAlign"),
        ((source, tmp_path / "new", "--base", tmp_path), "--dtype are for VideoAlign"),
    ):
        code, text = run(*arguments)
        assert (code, message in text) == (2, True), text
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, ConfigError, "missing a required argument: 'path'"),
        ({"path": "nowhere"}, MissingWeights, "sage-grpo rewards convert imagebind_huge.pth nowhere"),
        ({"path": "."}, RewardError, "has no config.json and model.safetensors"),
        ({"path": "{folder}", "device": "nonsense"}, RewardError, "imagebind cannot be put on device 'nonsense'"),
    ],
)
def test_options(options, error, message, folder):
    options = {key: str(folder) if value == "{folder}" else value for key, value in options.items()}
    recipe = load_recipe("lab", []).model_dump() | {"rewards": [{"type": "imagebind", "options": options}]}
    with pytest.raises(error, match=message):
        build.build_rewards(load_recipe(recipe))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "config.json").write_text('{"model_type": "clap"}'), "is not ImageBind, or of another version"),
        (lambda f: (f / "model.safetensors").write_bytes(b"torn"), "does not hold this network; convert it again"),
    ],
)
def test_another_folder_is_refused(spoil, message, tmp_path):
    convert(release(tmp_path), tmp_path / "made", sizes=SIZES)
    spoil(tmp_path / "made")
    with pytest.raises(RewardError, match=message):
        ImageBindReward(str(tmp_path / "made"))


def test_a_rehearsal_does_without_the_checkpoint_and_says_so():
    entry = {"type": "imagebind", "options": {"path": "nowhere", "device": "cuda"}}
    told = Rehearsal("x")
    (part,), _ = find_rewards(load_recipe(load_recipe("lab", []).model_dump() | {"rewards": [entry]}), told)
    assert tuple(part.names) == ("imagebind",)
    assert "nowhere is not there" in told.stand_ins[0]
