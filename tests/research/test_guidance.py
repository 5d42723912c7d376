"""`python -m research guidance`: its table is on the page, and its runs meet what was fixed before them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from research.__main__ import app
from research.guidance import Judged, as_markdown, flags, of_videos
from research.run_log import RunLog
from sage_grpo.lab.shapes.world import all_prompts, kept_out

DOCS = Path(__file__).parents[2] / "docs"
SEEDS = range(5)


def on_record():
    return list(RunLog(DOCS / "laboratory" / "runs.jsonl").read().values())


def test_the_page_has_the_table_on_record():
    rows = on_record()
    assert [row["name"] for row in rows] == ["base", *(f"lab-{seed}" for seed in SEEDS)]
    assert as_markdown(rows).strip() in (DOCS / "laboratory.md").read_text("utf-8")


def test_the_record_is_of_the_recipe_as_it_ships():
    jobs = [Judged(seed, 240, Path("any")) for seed in (None, *SEEDS)]
    assert {job.key for job in jobs} == RunLog(DOCS / "laboratory" / "runs.jsonl").read().keys()


def test_guidance_does_not_mend_the_base():
    """The rule by which it was accepted: docs/laboratory/frozen.txt."""
    base = on_record()[0]["guidance"]
    assert list(base) == ["1", "2", "4"]
    for found in base.values():
        assert len(found["followed"]) == len(found["flawed"]) == 240
        assert sum(flags(found)) / 240 < 0.75
        assert sum(flags(found, "flawed")) / 240 >= 0.1


@pytest.mark.parametrize("seed", SEEDS)
def test_every_seed_meets_the_bars_that_were_fixed_before(seed):
    base, run = on_record()[0]["guidance"]["2"], on_record()[1 + seed]["guidance"]["2"]
    assert sum(flags(run)) / 240 >= 0.93
    assert run["distance"] <= base["distance"]
    assert run["diversity"] >= 0.85 * base["diversity"]
    assert sum(flags(run, "flawed")) <= sum(flags(base, "flawed")) / 2


def test_held_out_prompts_come_in_turn():
    right = [kept_out(all_prompts()[i % 48]) for i in range(96)]
    assert of_videos(right)[0] == 0.25
    assert of_videos(right, kept_out_only=True)[0] == 1


@pytest.mark.slow
def test_the_command_judges_the_base_once(tmp_path):
    command = ["guidance", "--out", str(tmp_path), "--seeds", "0", "--samples", "96", "--workers", "1", "--json"]
    (base,) = json.loads(CliRunner().invoke(app, command).stdout)
    assert all(found["followed"].count("1") / 96 < 0.8 for found in base["guidance"].values())
    before = (tmp_path / "runs.jsonl").stat().st_mtime_ns
    assert json.loads(CliRunner().invoke(app, command).stdout) == [base]
    assert (tmp_path / "runs.jsonl").stat().st_mtime_ns == before
