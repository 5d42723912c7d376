"""The command with real runs: killed and called again it ends as if nothing had happened."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from sage_grpo.cli import app
from sage_grpo.config import load_recipe
from sage_grpo.runs.folder import RunFolder
from sage_grpo.training.trackers import read_metrics
from sage_grpo.training.trainer import Trainer

SHORT = ["run.iterations=9", "run.sample_every=0", "gauge.every=0", "policy.prompts_per_iteration=2"]
SHORT += ["policy.batch_size=4"]
RATES = "optimizer.lr=1e-5,1e-3"


def command(out, processes=1):
    settings = [*SHORT, f"parallel.processes={processes}"]
    return [sys.executable, "-m", "sage_grpo", "tune", "lab-paper-fast", *settings, "--try", RATES, "--out", str(out)]


def ended(arguments):
    done = subprocess.run([*arguments, "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["tried"]


def rewards(folder):
    return [row["reward/mean"] for row in read_metrics(RunFolder(Path(folder)).log)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A search that nothing disturbs."""
    return ended(command(tmp_path_factory.mktemp("whole")))


@pytest.mark.slow
def test_the_best_run_is_what_train_makes_of_the_best_recipe(whole, tmp_path):
    """Climbing from rung to rung changes nothing."""
    assert [row["iterations"] for row in whole] == [9, 3]
    folder = Path(whole[0]["folder"])
    assert (folder.parents[1] / "tune.png").stat().st_size > 10_000
    config = load_recipe(folder.parents[1] / "best.yaml", [f"run.out={tmp_path}", "run.trackers=[]"])
    Trainer(config=config, console=Console(quiet=True)).train()
    assert rewards(tmp_path) == rewards(folder)


@pytest.mark.slow
def test_killed_and_called_again_it_continues(whole, tmp_path):
    """On two processes: their launcher outlives the search, ends with its run, and the next search waits for it."""
    started = subprocess.Popen(command(tmp_path, 2), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    second = RunFolder(tmp_path / "runs" / "optimizer.lr=1e-3")
    while not second.log.exists():
        assert started.poll() is None, "it ended before it could be killed"
        time.sleep(0.05)
    os.kill(started.pid, signal.SIGKILL)
    started.wait()
    again = ended(command(tmp_path, 2))
    assert [(row["name"], row["iterations"]) for row in again] == [(row["name"], row["iterations"]) for row in whole]
    for here, there in zip(again, whole, strict=True):
        assert here["rewards"] == pytest.approx(there["rewards"], abs=1e-4)  # two processes add up in another order


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-such-recipe"], "no-such-recipe"),
        (["lab", "--try", "optimizer.rate=1,2"], "unknown key"),
        (["lab", "--passes", "10", "--hours", "1"], "not both"),
        (["lab", "--passes", "10"], "Give --passes"),
    ],
)
def test_a_mistake_is_a_sentence(arguments, said, tmp_path):
    result = CliRunner().invoke(app, ["tune", *arguments, "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert said in result.stderr.replace("\n", " ")
