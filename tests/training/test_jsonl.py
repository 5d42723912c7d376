"""metrics.jsonl: strict JSON, whole after a kill, without doubled steps after a resume."""

import json
import math
import os
import subprocess
import sys

import pytest

pytest.importorskip("hypothesis")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sage_grpo.training.trackers import JsonlTracker, read_metrics


def write(path, steps, resume_at=None):
    tracker = JsonlTracker(path, resume_at)
    for step in steps:
        tracker.log(step, {"reward/mean": step / 2})
    tracker.close()


def steps_of(path):
    return [row["step"] for row in read_metrics(path)]


def test_a_line_is_strict_json_and_there_at_once(tmp_path):
    tracker = JsonlTracker(tmp_path / "runs" / "metrics.jsonl")
    tracker.log(3, {"loss": math.nan, "kl": math.inf, "low": -math.inf, "reward/mean": 0.25})

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    row = json.loads((tmp_path / "runs" / "metrics.jsonl").read_text(), parse_constant=refuse)  # not closed yet
    assert list(row) == ["step", "time", "loss", "kl", "low", "reward/mean"]
    assert row | {"time": 0} == {"step": 3, "time": 0, "loss": None, "kl": None, "low": None, "reward/mean": 0.25}
    tracker.close()


def test_a_metric_may_not_hide_the_step(tmp_path):
    tracker = JsonlTracker(tmp_path / "m.jsonl")
    with pytest.raises(ValueError, match="step"):
        tracker.log(1, {"step": 7.0})
    tracker.close()
    assert read_metrics(tmp_path / "m.jsonl") == []


def test_resume_makes_one_curve(tmp_path):
    path = tmp_path / "m.jsonl"
    write(path, range(6))
    write(path, range(4, 9), resume_at=4)
    assert steps_of(path) == list(range(9))
    write(path, range(9, 11))  # without resume_at nothing is lost
    assert steps_of(path) == list(range(11))
    write(path, range(2), resume_at=0)
    assert steps_of(path) == [0, 1]
    assert [p.name for p in tmp_path.iterdir()] == ["m.jsonl"]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.integers(1, 4), cut=st.integers(0, 200), tail=st.sampled_from([b"", b"\xe2\x82", b"\0\0", b"\n"]))
def test_a_torn_end_is_dropped_wherever_the_kill_came(tmp_path, lines, cut, tail):
    path = tmp_path / "m.jsonl"
    path.unlink(missing_ok=True)
    write(path, range(lines))
    whole = path.read_bytes()
    torn = whole[: min(cut, len(whole))]
    path.write_bytes(torn + tail)
    # A line is whole if all of its object is there and nothing else follows before its end.
    complete = (torn + tail).count(b"}\n") + ((torn + tail).endswith(b"}"))
    assert steps_of(path) == list(range(complete))
    write(path, range(complete, 6), resume_at=complete)
    assert steps_of(path) == list(range(6))


def test_a_broken_middle_is_an_error_and_changes_nothing(tmp_path):
    path = tmp_path / "m.jsonl"
    write(path, range(3))
    first, _, last = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(broken := first + b'{"step": 1, "ti\n' + last)
    with pytest.raises(ValueError, match="line 2"):
        read_metrics(path)
    with pytest.raises(ValueError, match="line 2"):
        JsonlTracker(path, 2)
    assert path.read_bytes() == broken


def test_a_kill_while_dropping_lines_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "m.jsonl"
    write(path, range(5))
    before = path.read_bytes()

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        JsonlTracker(path, 2)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m.jsonl"]


@pytest.mark.slow
def test_killed_for_real(tmp_path):
    """SIGKILL right after log() returns: the line is there."""
    path = tmp_path / "m.jsonl"
    code = (
        "import os, signal, sys; from pathlib import Path; from sage_grpo.training.trackers import JsonlTracker\n"
        "t = JsonlTracker(Path(sys.argv[1])); t.log(0, {'a': 1.0}); t.log(1, {'a': 2.0})\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert steps_of(path) == [0, 1]
