"""The trackers with a package of their own: one curve over all restarts, clear words when a package is missing."""

import math
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from sage_grpo.runs.folder import RunFolder
from sage_grpo.runs.tracker import TrackedRun
from sage_grpo.training import trackers as tracking
from sage_grpo.training.trackers import MissingExtra, TensorBoardTracker, make_trackers
from sage_grpo.videos import write_mp4


@pytest.mark.slow
def test_tensorboard_curve_and_video(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    movie = tmp_path / "movie.mp4"
    write_mp4(movie, np.arange(5 * 16 * 16 * 3, dtype=np.uint32).reshape(5, 16, 16, 3).astype(np.uint8))
    for start, stop, value, resume_at in ((0, 5, 1.0, None), (3, 7, 2.0, 3)):
        tracker = TensorBoardTracker(TrackedRun(tmp_path, "demo", {}, resume_at))
        for step in range(start, stop):
            tracker.log(step, {"reward/mean": value})
        tracker.video(stop - 1, "sample", movie)
        tracker.close()
        time.sleep(1.1)  # files are read in the order of their names, which begin with the second
    events = accumulator.EventAccumulator(str(RunFolder(tmp_path).tensorboard))
    events.Reload()
    curve = [(event.step, event.value) for event in events.Scalars("reward/mean")]
    assert curve == [(0, 1.0), (1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0), (5, 2.0), (6, 2.0)]
    (image,) = events.Images("sample")
    assert (image.step, image.width, image.encoded_image_string[:6]) == (6, 128, b"GIF89a")


@pytest.mark.slow
def test_wandb_offline_keeps_one_run_id(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    movie = tmp_path / "movie.mp4"
    write_mp4(movie, np.zeros((2, 16, 16, 3), np.uint8))
    for steps, resume_at in ((range(2), None), (range(1, 3), 1)):
        jsonl, wandb = make_trackers(["wandb"], tmp_path, config={"lr": 1e-3}, name="short", resume_at=resume_at)
        for step in steps:
            wandb.log(step, {"reward/mean": 0.5, "loss": math.nan})
        wandb.video(steps[-1], "sample", movie)
        wandb.close()
        jsonl.close()
    identity = (tmp_path / "wandb_run_id").read_text()
    records = list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    assert {path.name for path in records} == {f"run-{identity}.wandb"}
    assert list(tmp_path.glob("wandb/offline-run-*/files/media/videos/*.mp4"))
    assert any(b"reward/mean" in path.read_bytes() for path in records)


class FakeTrackio:
    """trackio's init, log and finish: resumes by name and keeps every row, also of a repeated step."""

    def __init__(self):
        self.rows, self.started, self.open = {}, [], 0

    def init(self, *, project, name, config, resume, embed):
        assert resume == "allow"
        self.started.append((project, name, config))
        self.open += 1
        rows = self.rows.setdefault(name, [])
        return SimpleNamespace(log=lambda metrics, step: rows.append((step, metrics)))

    def finish(self):
        self.open -= 1

    def Video(self, value):
        return ("video", value)


@pytest.fixture
def trackio(monkeypatch):
    fake = FakeTrackio()
    monkeypatch.setitem(sys.modules, "trackio", fake)
    return fake


def test_trackio_resumes_without_doubled_steps(tmp_path, trackio):
    for steps, resume_at in ((range(5), None), (range(3, 7), 3)):
        jsonl, tracker = make_trackers(["trackio"], tmp_path, config={"a": 1}, name="demo", resume_at=resume_at)
        for step in steps:
            tracker.log(step, {"reward/mean": float(step)})
            tracker.video(step, "sample", tmp_path / f"{step}.mp4")
        tracker.close()
        jsonl.close()
    ((name, rows),) = trackio.rows.items()
    assert name.startswith("demo-")
    assert [step for step, row in rows if "reward/mean" in row] == list(range(7))
    assert [row["sample"] for _, row in rows if "sample" in row] == [
        ("video", tmp_path / f"{step}.mp4") for step in range(7)
    ]
    assert trackio.started[0] == ("sage-grpo", name, {"a": 1})
    assert trackio.open == 0


def test_two_folders_are_two_runs_even_of_one_name(tmp_path, trackio):
    for folder in ("a", "b"):
        for tracker in make_trackers(["trackio"], tmp_path / folder, config={}, name="demo", resume_at=None):
            tracker.log(0, {"x": 1.0})
            tracker.close()
    assert len(trackio.rows) == 2


@pytest.mark.parametrize("package", ["wandb", "trackio", "tensorboard"])
def test_a_missing_package_says_how_to_get_it(tmp_path, monkeypatch, package):
    for loaded in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra) as raised:
        make_trackers([package], tmp_path, config={}, name="x", resume_at=None)
    expected = f"tracker '{package}' needs the package {package}: pip install 'sage-grpo[{package}]'"
    assert str(raised.value) == expected
    assert isinstance(raised.value, ImportError)


def test_a_broken_package_keeps_its_own_error(tmp_path, monkeypatch):
    (tmp_path / "trackio.py").write_text("import there_is_no_such_module")
    monkeypatch.delitem(sys.modules, "trackio", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="there_is_no_such_module"):
        make_trackers(["trackio"], tmp_path / "run", config={}, name="x", resume_at=None)


def test_an_unknown_name_is_refused_before_anything_opens(tmp_path):
    with pytest.raises(ValueError, match=r"unknown tracker 'tensorbord'; did you mean 'tensorboard'\?"):
        make_trackers(["jsonl", "tensorbord"], tmp_path / "run", config={}, name="x", resume_at=None)
    assert not (tmp_path / "run").exists()


def test_jsonl_is_always_first_and_once(tmp_path, trackio):
    trackers = make_trackers(["trackio", "jsonl", "trackio"], tmp_path, config={}, name="x", resume_at=None)
    assert [type(t).__name__ for t in trackers] == ["JsonlTracker", "TrackioTracker"]
    for tracker in trackers:
        tracker.close()


def test_one_that_fails_closes_the_others(tmp_path, trackio, monkeypatch):
    closed = []
    monkeypatch.setattr(tracking.JsonlTracker, "close", lambda self: closed.append("jsonl"))
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtra):
        make_trackers(["trackio", "wandb"], tmp_path, config={}, name="x", resume_at=None)
    assert closed == ["jsonl"]
    assert trackio.open == 0
