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
from sage_grpo.config import load_recipe
from sage_grpo.files import write_json
from sage_grpo.runs.folder import RunFolder
from sage_grpo.runs.redact import clean_command, clean_recipe, clean_text
from sage_grpo.training import environment
from sage_grpo.training.bookkeeping import write_start
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


PLANTED = "hunter2hunter2"
NESTED = [
    "rewards=[{options: {headers: [{name: X-Api-Key, value: %s}]}}]",
    "rewards=[{options: {auth: [me, %s]}}]",
    "rewards=[{options: {client_secret: {value: %s}}}]",
]
FORMS = [  # of a secret on a command line: by the key beside it, or by what secrets of known services begin with
    'rewards=[{type: "my:F", options: {api_key: %s}}]',
    "rewards.0.options.api_key=%s",
    'rewards=[{"type": "x", "options": {"api-key": "%s"}}]',
    "rewards=[{type: x, options: {apiKey: %s, n: 3}}]",
    "rewards=[{options: {access_token: 'a b %s'}}]",
    "rewards=[{options: {headers: {Authorization: Bearer %s}}}]",
    'rewards=[{options: {url: "http://host/?token=%s&x=1"}}]',
    'rewards=[{options: {url: "https://me:%s@host/"}}]',
    "url=http://host/?api_key=%s",
    "rewards=[{options: {api_key: %s",  # not YAML
    "--try=model.options.password=%s,b",
    "rewards=[{options: {passphrase: %s}}]",
    "rewards=[{options: {cookie: sid=%s}}]",
    """rewards=[{options: {json: '{"password": "%s"}'}}]""",
    "model.options.credentials.user=%s",
    "model.options={hf_token: %s}",
    "{api_key: %s}",
    "api_key: %s",
    "TOKEN=%s",
    "x=sk-ant-%s",
    "x=[hf_%s]",
    "x=xoxb-%s",
    "x=glpat-%s",
    "-----BEGIN PRIVATE KEY----- %s -----END PRIVATE KEY-----",
    *NESTED,
]


@pytest.mark.parametrize("form", FORMS)
def test_no_form_of_a_secret_is_kept(form):
    assert PLANTED not in str(clean_command(["x", form.replace("%s", PLANTED)]))
    assert PLANTED not in clean_recipe(form.replace("%s", PLANTED).replace("=", ": ", 1))
    if form not in NESTED:  # a sentence is not read as settings
        assert PLANTED not in clean_text(form.replace("%s", PLANTED))


@pytest.mark.parametrize(
    "plain",
    [
        "rewards=[{type: http, options: {url: 'http://host:1', token_variable: MY_TOKEN, max_tokens: 77}}]",
        "model.options={tokenizer: /data/t, keyframes: 3}",
        "optimizer.betas=[0.9, 0.99]",
        "kl.anchor=fixed",
    ],
)
def test_what_is_no_secret_stays_as_it_is(plain):
    assert clean_command(["x", plain]) == ["x", plain]


def git(*arguments, cwd):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    return subprocess.run(["git", *identity, *arguments], cwd=cwd, check=True, capture_output=True, text=True).stdout


def test_a_run_keeps_its_command_and_its_secrets_to_its_owner(tmp_path, monkeypatch):
    command = ["sage-grpo", "train", "lab", f"rewards=[{{type: http, options: {{api_key: {PLANTED}}}}}]"]
    monkeypatch.setattr(sys, "argv", command)
    write_json(tmp_path / "environment.json", describe_environment(), private=True)
    assert PLANTED not in (tmp_path / "environment.json").read_text()
    assert (tmp_path / "environment.json").stat().st_mode & 0o777 == 0o600
    config = load_recipe("lab", [f"model.options.api_key={PLANTED}", f"run.out={tmp_path / 'run'}"])
    write_start(RunFolder(tmp_path / "run"), config, resumed=False)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "run").iterdir()}
    assert modes == {"config.yaml": 0o600, "environment.json": 0o600}


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
