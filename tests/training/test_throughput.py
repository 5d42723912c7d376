"""MFU, goodput, peak memory and the slowest process: against hand counts, on one process and on two real ones."""

import json
import subprocess
import time
from types import SimpleNamespace

import pytest
import torch

from distributed.launcher import environment, torchrun
from sage_grpo.preflight.plan.background import work_of
from sage_grpo.runs.folder import RunFolder
from sage_grpo.training.callbacks import Log
from sage_grpo.training.throughput import Past, Throughput, Work, lateness, past_of
from sage_grpo.training.trackers import read_metrics

LOOP = SimpleNamespace(model=SimpleNamespace(module=torch.nn.Linear(1, 1)))


def measured(log, **more):
    speed, metrics = Throughput(log, None, **more), {}
    speed.on_start(LOOP)
    speed.ended -= 100  # when the iteration before it ended
    speed.on_iteration(LOOP, metrics)
    return metrics


def timed(**seconds):
    log = Log([], ())
    log.seconds = {f"seconds/{phase}": value for phase, value in seconds.items()}
    return log


def test_goodput_is_the_share_of_finished_iterations_since_the_first_start():
    """Ten seconds are done of a minute, and eight more now: 18 of 60."""
    metrics = measured(timed(rollout=5.0, score=1.0, update=2.0), past=Past(time.time() - 60, finished=10.0))
    assert metrics["speed/goodput"] == pytest.approx(18 / 60, rel=0.02)
    assert "speed/mfu" not in metrics
    assert "speed/peak_memory" not in metrics  # the host counts none
    assert not any("late" in name for name in metrics)  # one process is never late


def test_mfu_is_the_planned_work_over_what_the_device_could_do():
    answers = iter([Work(flops=5e14, peak=1e13)])
    metrics = measured(timed(update=0.1), work=lambda: next(answers))
    assert metrics["speed/mfu"] == pytest.approx(0.5, rel=0.02)  # 50 s of work in 100 s
    assert "speed/mfu" not in measured(timed(update=0.1), work=lambda: None)


def test_the_work_of_a_plan():
    assert work_of(json.dumps({"useful_pflop_per_iteration": 2.0, "peak_tflops_per_gpu": 989.0})) == Work(2e15, 989e12)
    assert work_of("") is work_of('{"error": "no such recipe"}') is None


def test_the_slowest_process_and_its_seconds_over_the_median():
    assert lateness(torch.tensor([1.0, 1.2, 5.0, 1.1], dtype=torch.float64)) == (pytest.approx(3.9), 2)


def test_the_past_is_read_from_the_folder(tmp_path):
    """Two parts: the first start counts, and only iterations that are still in the log."""
    rows = [{"step": i, "time": 1.0, "seconds/rollout": 2.0, "seconds/update": 3.0} for i in (1, 2)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "environment.json").write_text('{"started": "2026-01-01T00:00:00+00:00"}')
    (tmp_path / "environment-1.json").write_text('{"started": "2026-01-02T00:00:00+00:00"}')
    assert past_of(RunFolder(tmp_path)) == Past(1767225600.0, 10.0)
    assert past_of(RunFolder(tmp_path / "new")).finished == 0


@pytest.mark.slow
def test_two_processes_name_the_one_that_is_late(tmp_path):
    """The second sleeps for 0.3 s in each scoring. One message of 4 numbers per iteration, and none in an update."""
    done = subprocess.run(
        torchrun(2, "training.throughput_worker", tmp_path),
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert len(rows) == 3
    for row in rows:
        assert row["speed/late_rank/score"] == 1
        assert row["speed/late/score"] > 0.25
        assert 0 < row["speed/goodput"] <= 1
        assert row["speed/mfu"] > 0
    counted = json.loads((tmp_path / "messages.json").read_text())
    assert counted == {"outside": 3, "in updates": 0}
