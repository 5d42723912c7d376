"""`python -m research guidance`: its table is on the page, and its command runs once."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from research.__main__ import app
from research.guidance import Judged, as_markdown, held_out
from research.run_log import RunLog
from sage_grpo.lab.shapes.world import all_prompts, kept_out

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_has_the_table_on_record():
    rows = list(RunLog(DOCS / "laboratory" / "runs.jsonl").read().values())
    assert rows[0]["name"] == "base"
    assert as_markdown(rows).strip() in (DOCS / "laboratory.md").read_text("utf-8")


def test_the_record_is_of_the_recipe_as_it_ships():
    jobs = [Judged(seed, 240, Path("any")) for seed in (None, 0, 1, 2)]
    assert {job.key for job in jobs} <= RunLog(DOCS / "laboratory" / "runs.jsonl").read().keys()


def test_held_out_prompts_come_in_turn():
    right = [kept_out(all_prompts()[i % 48]) for i in range(96)]
    assert held_out(right) == [True] * 24


@pytest.mark.slow
def test_the_base_follows_more_prompts_with_guidance(tmp_path):
    command = ["guidance", "--out", str(tmp_path), "--seeds", "0", "--samples", "96", "--workers", "1", "--json"]
    (base,) = json.loads(CliRunner().invoke(app, command).stdout)
    shares = {scale: found["followed"].count("1") / 96 for scale, found in base["guidance"].items()}
    assert shares["1"] < 0.75
    assert 0.9 < shares["2"] <= shares["4"]
    before = (tmp_path / "runs.jsonl").stat().st_mtime_ns
    assert json.loads(CliRunner().invoke(app, command).stdout) == [base]
    assert (tmp_path / "runs.jsonl").stat().st_mtime_ns == before
