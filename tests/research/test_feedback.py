"""`python -m research feedback`: the page has its table, its record is of the code as it is, its command runs."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from research.__main__ import app
from research.feedback import FIRST_SEED, HISTORY, STARTS, TARGET, as_markdown, experiments, held
from research.grid import Job
from research.run_log import RunLog

DOCS = Path(__file__).parents[2] / "docs"


def recorded():
    return list(RunLog(DOCS / "feedback" / "runs.jsonl").read().values())


def run_with(kls):
    """A run of `lab-paper`, two updates an iteration, with these KLs."""
    curves = {"kl/penalty": [[n + 1, kl] for n, kl in enumerate(kls)], "kl_weight": [[len(kls), 2.0]]}
    return {"name": "proportional-below", "seed": 0, "iterations": len(kls), "curves": curves}


def test_every_window_of_the_last_half_must_lie_in_the_band():
    rows = HISTORY // 2
    wild = [TARGET * 100] * 20
    assert held(run_with([*wild, *[TARGET] * 20])).inside  # what came before the last half does not count
    assert not held(run_with([*wild, *[TARGET] * 12, *[TARGET * 1.6] * rows, *[TARGET] * 3])).inside
    assert not held(run_with([*wild, *[TARGET] * 12, *[TARGET * 0.4] * rows, *[TARGET] * 3])).inside
    assert held(run_with([*wild, *[TARGET * 0.4, TARGET * 1.6] * 10])).inside


def test_the_page_has_the_table_on_record():
    assert as_markdown(recorded()).strip() in (DOCS / "feedback.md").read_text("utf-8")


def test_proportional_feedback_held_the_kl_in_every_run_on_record():
    """The study is of ten seeds from each start; a run that leaves the band must not stay unseen."""
    runs = [run for run in recorded() if run["name"].startswith("proportional")]
    seeds = {start: sorted(run["seed"] for run in runs if run["name"].endswith(start)) for start in STARTS}
    assert seeds == {start: list(range(FIRST_SEED, FIRST_SEED + 10)) for start in STARTS}
    assert all(held(run).inside for run in runs)


def test_the_record_is_of_the_recipe_as_it_ships():
    known, grid = RunLog(DOCS / "feedback" / "runs.jsonl").read(), experiments()
    for key, run in known.items():
        samples = 96
        assert Job(run["name"], grid[run["name"]], run["seed"], run["iterations"], samples, Path("any")).key == key


@pytest.mark.slow
def test_the_command_writes_table_picture_and_verdicts(tmp_path):
    command = ["feedback", "--out", str(tmp_path), "--seeds", "1", "--iterations", "22", "--samples", "48"]
    settings = ["--rules", "proportional", "--workers", "2", "--json"]
    found = json.loads(CliRunner().invoke(app, [*command, *settings]).stdout)
    assert [row["name"] for row in found] == ["proportional-below", "proportional-above"]
    assert {"kl", "lowest", "highest", "weight", "inside"} <= found[0].keys()
    assert (tmp_path / "feedback.png").stat().st_size > 10_000
    wrong = CliRunner().invoke(app, ["feedback", "--out", str(tmp_path), "--rules", "pid"])
    assert wrong.exit_code == 2
    assert "there is no 'pid'" in wrong.output
