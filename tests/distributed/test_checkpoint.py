"""Checkpoints: whole or not there, whatever happens to their bytes."""

import hashlib
import json
import pickle
from uuid import uuid4

import pytest
import torch

from sage_grpo.distributed.checkpoint import (
    CheckpointError,
    DamagedCheckpoint,
    Saver,
    checkpoints,
    load_checkpoint,
    load_newest,
    step_name,
)
from sage_grpo.distributed.checkpoint_index import from_json
from sage_grpo.distributed.storage import Storage, StorageError
from support import Trap

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


def save_checkpoint(root, step, state, keep=2):
    """Write one and wait for it; its name below the root."""
    saver = Saver(root, keep)
    saver.save(step, state)
    saver.wait()
    return step_name(step)


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return a == b and type(a) is type(b)


def spoil(file, damage):
    data = bytearray(file.read_bytes())
    if damage == "delete":
        file.unlink()
    elif damage == "truncate":
        file.write_bytes(data[: len(data) // 2])
    else:
        place = data.index(b'"sha256"') + 30 if file.name == "manifest.json" else len(data) // 2
        data[place] ^= 1
        file.write_bytes(data)


def test_round_trip_keeps_types_and_bits(tmp_path):
    name = save_checkpoint(tmp_path, 3, STATE)
    assert equal(load_checkpoint(tmp_path, name), STATE)


def test_retention_and_order(tmp_path):
    for step in (1, 2, 10):
        save_checkpoint(tmp_path, step, {"step": step}, keep=2)
    assert checkpoints(tmp_path) == ["step-00000002", "step-00000010"]


def test_some_are_never_removed(tmp_path):
    """Also by a run that is resumed, and by one that keeps no others any more."""
    steps = {4: (20, 30, 40, 50, 60, 80), 3: (100, 120)}
    for keep, saved in steps.items():
        saver = Saver(tmp_path, keep - 2, keep_every=40)
        for step in saved:
            saver.save(step, {"step": step})
        saver.wait()
    assert checkpoints(tmp_path) == ["step-00000040", "step-00000080", "step-00000120"]
    save_checkpoint(tmp_path, 130, {"step": 130}, keep=1)
    assert checkpoints(tmp_path) == ["step-00000130"]


def test_parts_of_killed_writers_are_removed(tmp_path):
    """A run that was killed while it stopped does not save that iteration again."""
    for left in (".step-00000007.part/tensors", ".step-00000001.part"):
        (tmp_path / left).mkdir(parents=True)
    save_checkpoint(tmp_path, 10, STATE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000010"]


@pytest.mark.parametrize("name", ["tensors/__0_0.distcp", "tensors/index.json", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["truncate", "flip", "delete"])
def test_damage_to_any_file_is_found_and_passed_over(tmp_path, name, damage):
    save_checkpoint(tmp_path, 1, STATE)
    newest = save_checkpoint(tmp_path, 2, STATE)
    spoil(tmp_path / newest / name, damage)
    with pytest.raises(DamagedCheckpoint):
        load_checkpoint(tmp_path, newest)
    found, state, problems = load_newest(tmp_path)
    assert found == "step-00000001"
    assert equal(state, STATE)
    assert len(problems) == 1


@pytest.mark.parametrize("place", ["../../secret", "/etc/hostname", "tensors/../../../secret", "..\\\\secret"])
def test_a_manifest_names_files_of_its_checkpoint_only(tmp_path, place, monkeypatch):
    newest = save_checkpoint(tmp_path / "run", 1, STATE)
    (tmp_path / "secret").write_text("nobody's business")
    path = tmp_path / "run" / newest / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["sha256"][place] = "0" * 64
    path.write_text(json.dumps(manifest))
    read = []
    monkeypatch.setattr(Storage, "digest", lambda self, name: read.append(name))
    with pytest.raises(DamagedCheckpoint, match="no file of a checkpoint"):
        load_checkpoint(tmp_path / "run", newest)
    assert not read


def test_half_written_folders_do_not_count(tmp_path):
    save_checkpoint(tmp_path, 1, STATE)
    (tmp_path / ".step-00000002.part").mkdir()
    assert checkpoints(tmp_path) == ["step-00000001"]
    save_checkpoint(tmp_path, 2, STATE)  # and what a killed run left is no obstacle
    assert load_newest(tmp_path)[0] == "step-00000002"


def test_all_damaged_is_an_error_not_a_fresh_start(tmp_path):
    path = tmp_path / save_checkpoint(tmp_path, 1, STATE)
    (path / "state.json").write_text("{}")
    with pytest.raises(DamagedCheckpoint, match="no whole checkpoint is left"):
        load_newest(tmp_path)
    assert load_newest(tmp_path / "nothing") is None


def test_only_plain_data_is_saved(tmp_path):
    with pytest.raises(TypeError, match="state/x is a set"):
        save_checkpoint(tmp_path, 1, {"x": {1, 2}})
    assert not checkpoints(tmp_path)


def test_json_is_readable(tmp_path):
    path = tmp_path / save_checkpoint(tmp_path, 1, STATE)
    assert json.loads((path / "manifest.json").read_text())["step"] == 1


def test_an_earlier_format_is_named(tmp_path):
    path = tmp_path / save_checkpoint(tmp_path, 1, STATE)
    (path / "manifest.json").write_text(json.dumps({"step": 1, "sha256": {"tensors.safetensors": "0"}}))
    with pytest.raises(DamagedCheckpoint, match="earlier version's format"):
        load_checkpoint(tmp_path, path.name)


def test_training_goes_on_while_it_is_written(tmp_path):
    """What is saved is the state at the call, whatever happens to it while the files are written."""
    weights = torch.zeros(1 << 16)
    saver = Saver(tmp_path, keep=3)
    for step in (1, 2, 3):
        saver.save(step, {"weights": weights})
        weights += 1.0
    saver.wait()
    for step in (1, 2, 3):
        assert load_checkpoint(tmp_path, f"step-{step:08d}")["weights"].unique().item() == step - 1


def test_a_failure_in_the_background_is_raised_by_the_next_call(tmp_path):
    saver = Saver(tmp_path)
    saver.save(1, STATE)
    saver.wait()
    saver.storage.digest = lambda name: (_ for _ in ()).throw(OSError(5, "Input/output error"))
    saver.save(2, STATE)
    with pytest.raises(CheckpointError, match=r"iteration 2 .*Input/output error; the last whole one is step-00000001"):
        saver.save(3, STATE)
    assert checkpoints(tmp_path) == ["step-00000001"]


@pytest.mark.parametrize("damage", ["truncate", "flip", "delete"])
@pytest.mark.parametrize("name", ["tensors/__0_0.distcp", "tensors/index.json", "state.json", "manifest.json"])
def test_remote_folders(name, damage):
    """Nothing can be renamed there: a checkpoint counts when its manifest, written last, is there and right."""
    root = f"memory://bucket/{uuid4()}"
    for step in (1, 2, 3):
        save_checkpoint(root, step, STATE)
    assert checkpoints(root) == ["step-00000002", "step-00000003"]
    assert equal(load_newest(root)[1], STATE)
    storage = Storage(root)
    path, data = storage._path(f"step-00000003/{name}"), bytearray(storage.read(f"step-00000003/{name}"))
    if damage == "delete":
        storage.fs.rm(path)
    else:
        place = data.index(b'"sha256"') + 30 if name == "manifest.json" else len(data) // 2
        data[place] ^= 1
        storage.fs.pipe_file(path, bytes(data if damage == "flip" else data[: len(data) // 2]))
    found, state, problems = load_newest(root)
    assert (found, len(problems)) == ("step-00000002", 1)
    assert equal(state, STATE)


def test_an_unfinished_checkpoint_takes_no_place_of_a_whole_one():
    """A process that is killed while it writes to a remote folder leaves files without a manifest."""
    root = f"memory://bucket/{uuid4()}"
    save_checkpoint(root, 1, STATE)
    storage = Storage(root)
    storage.write(f"{step_name(2)}/state.json", b"{}")
    save_checkpoint(root, 3, STATE)
    assert checkpoints(root) == [step_name(1), step_name(3)]
    assert equal(load_newest(root)[1], STATE)


@pytest.mark.parametrize("root", ["memory", "folder"])
def test_what_cannot_be_removed_takes_nothing_with_it(root, tmp_path, caplog):
    root = tmp_path if root == "folder" else f"memory://bucket/{uuid4()}"
    saver = Saver(root, keep=1)
    saver.save(1, STATE)
    saver.wait()
    remove = saver.storage.remove

    def failing(name):
        if name == step_name(1):
            raise RuntimeError("SlowDown")  # storage has errors of its own, not only those of files
        remove(name)

    saver.storage.remove = failing
    saver.save(2, STATE)
    saver.wait()
    assert checkpoints(root) == [step_name(1), step_name(2)]
    assert equal(load_newest(root)[1], STATE)
    assert "could not be removed: RuntimeError: SlowDown" in caplog.text


@pytest.mark.parametrize("method", ["begin", "write", "publish"])
def test_errors_of_the_storages_own_kind_are_told(method, tmp_path):
    saver = Saver(tmp_path)
    saver.save(1, STATE)
    saver.wait()
    setattr(saver.storage, method, lambda *args: (_ for _ in ()).throw(RuntimeError("SlowDown")))
    with pytest.raises(CheckpointError, match=r"SlowDown; the last whole one is step-00000001"):
        (saver.save(2, STATE), saver.wait())  # at the start or in the background
    assert checkpoints(tmp_path) == ["step-00000001"]


@pytest.mark.parametrize("name", ["index.json", ".metadata", "__0_0.distcp"])
def test_a_pickle_in_a_checkpoint_runs_nothing(name, tmp_path):
    """Whoever can change a file can change its hash as well: hashes are for accidents."""
    path = tmp_path / save_checkpoint(tmp_path, 1, STATE)
    planted = path / "tensors" / name
    bad = pickle.dumps(Trap(tmp_path / "pwned"))
    if name == "__0_0.distcp":
        index = json.loads((path / "tensors" / "index.json").read_text())
        start, length = next(iter(index.values()))["pieces"][0][3:]
        data = bytearray(planted.read_bytes())
        data[start : start + length] = bad.ljust(length, b"\0")
        bad = bytes(data)
    planted.write_bytes(bad)
    manifest = json.loads((path / "manifest.json").read_text())
    if name != ".metadata":
        manifest["sha256"][f"tensors/{name}"] = hashlib.sha256(bad).hexdigest()
        (path / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(DamagedCheckpoint, match="does not hold the tensors of a checkpoint"):
            load_checkpoint(tmp_path, path.name)
    else:
        assert equal(load_checkpoint(tmp_path, path.name), STATE)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("file", ["../state.distcp", "/etc/passwd", "tensors/__0_0.distcp", "state.json"])
def test_an_index_names_no_other_files(file, tmp_path):
    path = tmp_path / save_checkpoint(tmp_path, 1, STATE)
    index = json.loads((path / "tensors" / "index.json").read_text())
    next(iter(index.values()))["pieces"][0][2] = file
    with pytest.raises(ValueError, match="no file of a checkpoint"):
        from_json(json.dumps(index).encode())


def test_places_that_cannot_be_used_are_named():
    with pytest.raises(StorageError, match=r"run.checkpoints=s4://bucket.*use a folder, or s3://"):
        Storage("s4://bucket/run")
