"""`python -m research`: every study says what it does, and refuses a mistake in a sentence before it trains."""

import re

import pytest
from typer.testing import CliRunner

from research.__main__ import app
from sage_grpo.cli import app as cli

STUDIES = ("compare", "efficiency", "feedback", "guidance", "reproduce", "settings")
MISTAKES = {
    "reproduce --out o --seeds 2": "--seeds",
    "reproduce --out o --workers 0": "--workers",
    "efficiency --out o --only nosuch": "nosuch",
    "settings --out o --workers -1": "--workers",
    "feedback --out o --rules nosuch": "nosuch",
    "compare --out o --only nosuch": "nosuch",
    "compare --out o --group nosuch": "nosuch",
    "nosuch": "No such command",
} | {f"{study} --out afile": "afile is a file" for study in STUDIES}


def invoke(line):
    result = CliRunner().invoke(app, line.split(), env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})
    return result.exit_code, " ".join(re.sub("│", " ", result.output).split())


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "afile").touch()
    code, said = invoke(line)
    assert code == 2
    assert MISTAKES[line] in said
    assert [path.name for path in tmp_path.iterdir()] == ["afile"]


@pytest.mark.parametrize("study", STUDIES)
def test_the_old_command_names_the_new_one(study):
    said = CliRunner().invoke(cli, ["lab", study, "--out", "x", "--seeds", "2"], env={"COLUMNS": "200"})
    assert said.exit_code == 2
    assert f"python -m research {study}" in said.output


@pytest.mark.parametrize("study", STUDIES)
def test_help_has_an_example(study):
    code, said = invoke(f"{study} --help")
    assert code == 0
    assert f"Example: python -m research {study} --out" in said.replace("`", "")
