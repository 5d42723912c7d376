"""docs/add-a-model.md, followed word for word: the file, the contract, the rehearsal."""

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("diffusers")

import yaml
from typer.testing import CliRunner

from documentation.blocks import blocks
from sage_grpo.cli import app
from sage_grpo.models import contract

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "add-a-model.md"
PYTHON, YAML = ([block.code for block in blocks(PAGE) if block.language == kind] for kind in ("python", "yaml"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "my_auraflow.py").write_text(PYTHON[0])
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("my_auraflow", None)


def test_the_file_keeps_the_contract(folder, capsys):
    exec(PYTHON[1], {})
    printed = capsys.readouterr().out.splitlines()
    assert len([line for line in printed if line.startswith("check_")]) == 2 * len(contract.CHECKS)
    assert len(PYTHON[0].splitlines()) < 80


def test_the_recipe_is_rehearsed(folder):
    recipe = yaml.safe_load(YAML[0])
    (folder / "recipe.yaml").write_text(YAML[0])
    result = CliRunner().invoke(app, ["rehearse", str(folder / "recipe.yaml"), "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout.splitlines()[-1])
    assert told["facts"]["export loads"] == "by plain diffusers"
    assert any("my_rewards" in text for text in told["stand_ins"])
    assert recipe["model"]["type"] == "my_auraflow:AuraFlow"
