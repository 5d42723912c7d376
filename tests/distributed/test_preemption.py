"""SIGTERM ends a run of several processes with a checkpoint, whoever of them gets it."""

import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from distributed.launcher import environment, torchrun, workers
from sage_grpo.core.comm import SingleProcess
from sage_grpo.training.stop import CollectiveStop, stop_on_signal

TRAIN = (
    "sage_grpo",
    "train",
    "lab",
    "policy.prompts_per_iteration=4",
    "policy.batch_size=8",
    "sampling.steps=4",
    "policy.timestep_fraction=0.4",
    "run.save_every=1000",
    "run.sample_every=0",
    "run.trackers=[]",
    "--json",
)


def rows(folder):
    path = folder / "run" / "metrics.jsonl"
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def saved(folder):
    return [int(path.name.removeprefix("step-")) for path in sorted((folder / "run" / "checkpoints").glob("step-*"))]


def stop(folder, whom):
    """Start the command, ask it to stop after its next iteration; its code, its summary and what it told."""
    before, deadline = rows(folder), time.monotonic() + 120
    command = torchrun(2, *TRAIN, "parallel.processes=2", f"run.out={folder / 'run'}", "run.iterations=1000")
    log = folder / "log.txt"
    with log.open("w") as told:
        launcher = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=told, text=True)
    while rows(folder) == before and launcher.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(whom(launcher), signal.SIGTERM)
    out, _ = launcher.communicate(timeout=120)
    assert out.strip(), log.read_text()[-3000:]
    return launcher.returncode, json.loads(out.splitlines()[-1]), log.read_text()


@pytest.mark.real_start
@pytest.mark.slow
def test_sigterm_saves_and_a_later_start_goes_on(tmp_path):
    """To one process, then to the launcher of a second start; a third one, of one process, goes on from there."""
    code, first, told = stop(tmp_path, lambda launcher: workers(launcher)[-1])
    assert code == 0, told[-3000:]
    assert first["stop_reason"] == "another process was asked to stop"
    assert saved(tmp_path) == [first["iterations"]] == [rows(tmp_path)]

    code, second, told = stop(tmp_path, lambda launcher: launcher.pid)
    assert code == 1  # torchrun's own, for it raises what it got; the processes ended with 0 by themselves
    assert "SignalException" in told
    assert "forcefully exiting" not in told
    assert second["stop_reason"] in ("SIGTERM received", "another process was asked to stop")  # who was first
    assert f"at iteration {first['iterations']}" in told
    assert saved(tmp_path) == [first["iterations"], second["iterations"]]
    assert second["iterations"] > first["iterations"]

    last = second["iterations"] + 1
    command = [sys.executable, "-m", *TRAIN, f"run.out={tmp_path / 'run'}", f"run.iterations={last}"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["iterations"] == last
    assert f"at iteration {second['iterations']}" in " ".join(done.stderr.split())
    assert rows(tmp_path) == last


def test_a_request_waits_until_all_can_agree():
    """Else a process that is asked while it saves would leave the others alone in the next iteration."""
    agree, told = CollectiveStop(), []
    loop = SimpleNamespace(comm=SingleProcess(), stop_reason=None, stop=told.append)
    with stop_on_signal(agree):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # from the scheduler, and passed on by torchrun
        assert not told
        agree.on_iteration(loop, {})
        assert told == ["SIGTERM received"]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
