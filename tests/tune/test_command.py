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
SHORT += ["policy.batch_size=8"]
RATES = "optimizer.lr=1e-5,1e-3"


def command(out):
    return [sys.executable, "-m", "sage_grpo", "tune", "lab-paper-fast", *SHORT, "--try", RATES, "--out", str(out)]


def ended(out):
    done = subprocess.run([*command(out), "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def rewards(folder):
    return [row["reward/mean"] for row in read_metrics(RunFolder(folder).log)]


@pytest.mark.slow
def test_killed_and_called_again_it_continues(tmp_path):
    whole = ended(tmp_path / "whole")
    started = subprocess.Popen(command(tmp_path / "cut"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    second = RunFolder(tmp_path / "cut" / "runs" / "optimizer.lr=1e-3")
    while not second.log.exists():
        assert started.poll() is None, "it ended before it could be killed"
        time.sleep(0.05)
    os.kill(started.pid, signal.SIGKILL)
    started.wait()
    again = ended(tmp_path / "cut")
    for here, there in zip(again["tried"], whole["tried"], strict=True):
        assert (here["name"], here["rewards"], here["iterations"]) == (
            there["name"],
            there["rewards"],
            there["iterations"],
        )
    assert [row["iterations"] for row in whole["tried"]] == [9, 3]
    assert (tmp_path / "cut" / "tune.png").stat().st_size > 10_000
    # climbing from rung to rung changes nothing: the best run is what `train` makes of the best recipe
    config = load_recipe(tmp_path / "cut" / "best.yaml", [f"run.out={tmp_path / 'plain'}", "run.trackers=[]"])
    Trainer(config=config, console=Console(quiet=True)).train()
    assert rewards(tmp_path / "plain") == rewards(Path(again["tried"][0]["folder"]))


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
