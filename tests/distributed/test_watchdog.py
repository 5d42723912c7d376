"""A run that hangs ends by itself, with the stacks of all its processes."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip("diffusers")

from distributed.launcher import environment, torchrun
from distributed.worker import brightness, recipe
from sage_grpo.distributed.processes import leave
from sage_grpo.training.trainer import Trainer

pytestmark = pytest.mark.slow

LIMIT = 12.0  # seconds; a busy machine needs some for the steps before the hang


class Sleeper:
    """A reward that sleeps for ever in the second iteration of one process; or does so without letting others run."""

    __name__ = "sleeper"

    def __init__(self, rank, kind="sleep"):
        self.calls, self.kind, self.asleep = 0, kind, int(os.environ.get("RANK", "0")) == rank

    def __call__(self, videos, prompts):
        self.calls += 1
        if self.asleep and self.calls > 2:  # two batches an iteration and process
            self.sleeps_for_ever()
        return brightness(videos, prompts)

    def sleeps_for_ever(self):
        if self.kind == "stone":
            import ctypes

            ctypes.PyDLL(None).sleep(600)  # keeps the interpreter's lock
        time.sleep(600)


def settings(folder, limit=LIMIT):
    values = recipe(folder, "shapes-full", folder / "run", 4, {})
    return values | {"run": values["run"] | {"hang_minutes": limit / 60, "save_every": 1}}


def train(folder, reward, limit=LIMIT):
    prompts = ["a red circle moving left", "a blue square moving up"]
    return Trainer(rewards=[reward], config=settings(folder, limit), prompts=prompts).train()


def run(folder, processes, *arguments, timeout=300):
    """As a program of its own: the code, what it wrote to stderr, and the files of its report."""
    module = ["distributed.test_watchdog", str(folder), *arguments]
    command = torchrun(processes, *module) if processes > 1 else [sys.executable, "-m", *module]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=timeout)
    files = {path.name: path.read_text() for path in (folder / "run" / "hang").glob("*/*")}
    return done.returncode, done.stderr, files


def test_one_rank_sleeps_and_all_tell_where_they_stand(tmp_path):
    code, stderr, files = run(tmp_path, 2, "1")
    assert code == 1
    recorded = ["collectives-0000.json", "collectives-0001.json"]
    assert sorted(files) == [*recorded, "rank-0000.txt", "rank-0001.txt", "report.txt"]
    last = [json.loads(files[name])["entries"][-1] for name in recorded]
    assert [entry["profiling_name"].split(":")[0] for entry in last] == ["gloo", "gloo"]
    assert last[0]["collective_seq_id"] == last[1]["collective_seq_id"] + 1  # rank 0 waits in one that 1 never joined
    assert "in sleeps_for_ever" in files["rank-0001.txt"]
    assert "in gather" in files["rank-0000.txt"]
    assert "all_gather" in files["rank-0000.txt"]  # it waits in C, for the other
    assert all("MainThread:" in files[name] and "watchdog:" in files[name] for name in files if "rank" in name)
    lines = files["report.txt"].splitlines()
    assert lines[0].startswith("error: no progress for 0.2 minutes (run.hang_minutes)")
    assert str(tmp_path / "run" / "hang") in lines[0]
    assert "rank 1" in lines[1]  # the least progress
    assert "1 iterations and 2 updates, last seen at a pass of the network 0.2 min ago" in lines[1]
    assert "rank 0" in lines[2]
    assert "last seen at a scored batch" in lines[2]
    assert stderr.count(files["report.txt"]) == 1
    assert len(list((tmp_path / "run" / "checkpoints").glob("step-*"))) == 1  # a restart goes on from there


@pytest.mark.parametrize(("kind", "place"), [("sleep", "files"), ("stone", "stderr")])
def test_one_process(tmp_path, kind, place):
    """Also where no thread of Python can run: the interpreter then writes to stderr."""
    code, stderr, files = run(tmp_path, 1, "0", kind)
    assert code == 1
    assert "sleeps_for_ever" in (files["rank-0000.txt"] if place == "files" else stderr)
    assert ("this run hangs" in stderr) == (place == "files")
    assert ("Timeout" in stderr) == (place == "stderr")


@pytest.mark.parametrize("limit", [60.0, 0.0])
def test_a_run_that_does_not_hang_leaves_nothing(tmp_path, limit):
    before = threading.active_count()
    assert train(tmp_path, Sleeper(rank=None), limit).iterations == 4
    assert threading.active_count() == before
    assert not (tmp_path / "run" / "hang").exists()


if __name__ == "__main__":
    from pathlib import Path

    train(Path(sys.argv[1]), Sleeper(int(sys.argv[2]), *sys.argv[3:4]), float(os.environ.get("LIMIT", LIMIT)))
    leave()
