"""The record of where a run ran: enough to repeat it, nothing that names a person, a machine or a secret."""

import getpass
import json
import os
import platform
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import numpy
import pytest
import torch

import sage_grpo
from sage_grpo.runs.private import clean_command
from sage_grpo.training import environment
from sage_grpo.training.environment import describe_environment


def test_it_says_what_it_ran_on(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/opt/bin/sage-grpo", "train", "recipe.yaml"])
    record = describe_environment()
    assert json.loads(json.dumps(record)) == record
    assert record["sage_grpo"] == sage_grpo.__version__
    assert record["python"] == platform.python_version()
    assert record["packages"]["torch"] == torch.__version__
    assert record["packages"]["numpy"] == numpy.__version__
    assert record["cpu_count"] == os.cpu_count()
    assert record["command"] == ["sage-grpo", "train", "recipe.yaml"]
    assert datetime.fromisoformat(record["started"]).tzinfo is not None
    assert "not-a-package" not in record["packages"]


def test_a_package_that_is_not_there_is_left_out(monkeypatch):
    monkeypatch.setattr(environment, "PACKAGES", ("numpy", "not-a-package"))
    assert list(describe_environment()["packages"]) == ["numpy"]


def test_devices_are_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: f"Card {i}")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    assert describe_environment()["devices"] == ["Card 0", "Card 1"]
    assert describe_environment()["allocator"] == "PYTORCH_ALLOC_CONF=expandable_segments:True"


def test_nothing_private_leaks(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnopqrstuv")
    monkeypatch.setenv("SOMETHING_ELSE", "planted-value-of-the-environment")
    monkeypatch.setenv("HOME", "/srv/people/grace.hopper")
    monkeypatch.setattr(platform, "node", lambda: "planted-host")
    monkeypatch.setattr(getpass, "getuser", lambda: "planted-user")
    argv = [
        "/srv/people/grace.hopper/bin/sage-grpo",
        "--out",
        "/srv/people/grace.hopper/runs/1",
        "--hf-token",
        "planted",
    ]
    monkeypatch.setattr(sys, "argv", argv)
    text = json.dumps(describe_environment())
    assert not [bad for bad in ("hf_abc", "planted", "hopper", platform.uname().node) if bad in text]
    assert "~/runs/1" in text


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["x", "--hf-token=abc", "--lr=3"], ["x", "--hf-token=***", "--lr=3"]),
        (["x", "--api-key", "abc", "--lr", "3"], ["x", "--api-key", "***", "--lr", "3"]),
        (["x", "tracking.wandb_key=abc"], ["x", "tracking.wandb_key=***"]),
        (["x", "--password", "--next", "shown"], ["x", "--password", "--next", "shown"]),
        (["x", "model=hf_abcdefghijklmnop"], ["x", "model=***"]),
        (["x", "https://me:secret@host/y"], ["x", "https:***host/y"]),
        (["x", "/home/ada/data", "out=/Users/ada/runs"], ["x", "~/data", "out=~/runs"]),
        (["x", r"C:\Users\ada\data"], ["x", r"~\data"]),
        (["x", "/data/home/movies", "monkey=3"], ["x", "/data/home/movies", "monkey=3"]),
        ([], []),
    ],
)
def test_the_command_line_is_cleaned(given, expected):
    assert clean_command(given) == expected


def git(*arguments, cwd):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    return subprocess.run(["git", *identity, *arguments], cwd=cwd, check=True, capture_output=True, text=True).stdout


def test_the_commit_of_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert describe_environment()["git_commit"] is None  # outside of git
    git("init", "-q", cwd=tmp_path)
    assert describe_environment()["git_commit"] is None  # nothing committed
    Path("a.txt").write_text("a")
    git("add", ".", cwd=tmp_path)
    git("commit", "-qm", "a", cwd=tmp_path)
    git("tag", "-am", "v1", "v1", cwd=tmp_path)  # a tag must not stand in for the commit
    commit = git("rev-parse", "HEAD", cwd=tmp_path).strip()
    assert describe_environment()["git_commit"] == commit
    Path("a.txt").write_text("b")
    assert describe_environment()["git_commit"] == f"{commit}-dirty"
    monkeypatch.setenv("PATH", "")
    assert describe_environment()["git_commit"] is None  # no git
