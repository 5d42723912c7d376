"""Checkpoints: whole or not there, whatever happens to their bytes."""

import json

import pytest
import torch

from sage_grpo.dist.checkpoint import DamagedCheckpoint, checkpoints, load_checkpoint, load_newest, save_checkpoint

STATE = {
    "weights": {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(3)},
    "optimizer": {
        "state": {0: {"step": torch.tensor(1.0), "exp_avg": torch.randn(4).bfloat16()}},
        "groups": [{"lr": 1e-4}],
    },
    "pair": (1, 2.5),
    "text": "λ",
    "none": None,
    "flag": True,
}


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return a == b and type(a) is type(b)


def test_round_trip_keeps_types_and_bits(tmp_path):
    path = save_checkpoint(tmp_path, 3, STATE)
    assert equal(load_checkpoint(path), STATE)


def test_retention_and_order(tmp_path):
    for step in (1, 2, 10):
        save_checkpoint(tmp_path, step, {"step": step}, keep=2)
    assert [p.name for p in checkpoints(tmp_path)] == ["step-00000002", "step-00000010"]


@pytest.mark.parametrize("name", ["tensors/__0_0.distcp", "tensors/.metadata", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["truncate", "flip", "delete"])
def test_damage_to_any_file_is_found_and_passed_over(tmp_path, name, damage):
    save_checkpoint(tmp_path, 1, STATE)
    newest = save_checkpoint(tmp_path, 2, STATE)
    file = newest / name
    data = bytearray(file.read_bytes())
    if damage == "delete":
        file.unlink()
    elif damage == "truncate":
        file.write_bytes(data[: len(data) // 2])
    else:
        place = data.index(b'"sha256"') + 30 if name == "manifest.json" else len(data) // 2
        data[place] ^= 1
        file.write_bytes(data)
    with pytest.raises(DamagedCheckpoint):
        load_checkpoint(newest)
    path, state, problems = load_newest(tmp_path)
    assert path.name == "step-00000001"
    assert equal(state, STATE)
    assert len(problems) == 1


def test_half_written_folders_do_not_count(tmp_path):
    save_checkpoint(tmp_path, 1, STATE)
    (tmp_path / ".step-00000002.part").mkdir()
    assert [p.name for p in checkpoints(tmp_path)] == ["step-00000001"]
    save_checkpoint(tmp_path, 2, STATE)  # and what a killed run left is no obstacle
    assert load_newest(tmp_path)[0].name == "step-00000002"


def test_all_damaged_is_an_error_not_a_fresh_start(tmp_path):
    path = save_checkpoint(tmp_path, 1, STATE)
    (path / "state.json").write_text("{}")
    with pytest.raises(DamagedCheckpoint, match="no whole checkpoint is left"):
        load_newest(tmp_path)
    assert load_newest(tmp_path / "nothing") is None


def test_only_plain_data_is_saved(tmp_path):
    with pytest.raises(TypeError, match="state/x is a set"):
        save_checkpoint(tmp_path, 1, {"x": {1, 2}})
    assert not checkpoints(tmp_path)


def test_json_is_readable(tmp_path):
    path = save_checkpoint(tmp_path, 1, STATE)
    assert json.loads((path / "manifest.json").read_text())["step"] == 1


def test_an_earlier_format_is_named(tmp_path):
    path = save_checkpoint(tmp_path, 1, STATE)
    (path / "manifest.json").write_text(json.dumps({"step": 1, "sha256": {"tensors.safetensors": "0"}}))
    with pytest.raises(DamagedCheckpoint, match="earlier version's format"):
        load_checkpoint(path)
