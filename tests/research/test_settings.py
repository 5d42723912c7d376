"""Runs with a setting too low or too high, on record; and that `tune` finds what a whole grid finds."""

import json
from pathlib import Path
from statistics import mean

import pytest
from rich.console import Console

from research import halving, settings
from research.run_log import RunLog
from sage_grpo.tune.halving import cost, rungs

RECORD = Path(__file__).parents[2] / "docs" / "tuning"


def test_tune_is_within_a_tenth_of_the_best_at_a_third_of_the_cost():
    """On three seeds. Choices are made again from the curves on record, and rewards are those of fresh videos."""
    runs = [
        row for row in RunLog(RECORD / "runs.jsonl").read().values() if row["name"].startswith(("optimizer", "base"))
    ]
    for seed in range(3):
        of_seed = {row["name"]: row for row in runs if row["seed"] == seed}
        assert len(of_seed) == len(settings.RATE.values) == 9
        chosen = settings.choice({name: row["curves"]["reward/mean"] for name, row in of_seed.items()})
        ends = {name: row["evaluation"]["reward"] for name, row in of_seed.items()}
        assert ends[chosen] >= 0.9 * max(ends.values())
    assert cost(rungs(9, 1.0)) / 9 < 1 / 3


def test_halving_in_step_is_on_record_with_optunas():
    """Ours is computed again, and the decision quotes the record: Optuna is worse at a higher cost."""
    rows = [halving.Row(**row) for row in json.loads((RECORD / "halving.json").read_text())]
    ours = [row for row in rows if row.way == "in step"]
    assert halving.compare(RECORD / "runs.jsonl", ["in step"], orders=2) == ours
    page = (RECORD.parent / "adr" / "0025-halving-in-step.md").read_text()
    for way in halving.WAYS:
        of_way = [row for row in rows if row.way == way]
        figures = (
            mean(row.share for row in of_way),
            min(row.worst_share for row in of_way),
            mean(row.cost for row in of_way),
            max(row.worst_cost for row in of_way),
        )
        assert " | ".join(f"{figure:.0%}".replace("%", " %") for figure in figures) + " |" in page, way


def test_the_page_has_the_figures_on_record():
    found = json.loads((RECORD / "results.json").read_text())
    page = (RECORD.parent / "tuning.md").read_text()
    for row in found["settings"]:
        mean, low, high = row["ends"]["reward"]
        assert f"{mean:.2f} [{low:.2f}, {high:.2f}]" in page.replace("−", "-"), row["setting"]


def test_the_best_value_on_a_known_law_is_chosen():
    rises = {f"{height}": [height * (1 - 0.97**i) for i in range(117)] for height in (0.1, 0.3, 0.9, 0.5)}
    assert settings.choice(rises) == "0.9"


@pytest.mark.slow
def test_the_whole_command_at_a_small_size(tmp_path, monkeypatch):
    rate = settings.Setting("optimizer.lr", "Learning rate", (1e-5, settings.BASE.optimizer.lr))
    monkeypatch.setattr(settings, "RATE", rate)
    monkeypatch.setattr(settings, "SETTINGS", (rate,))
    quiet = Console(quiet=True)
    found = settings.settings(tmp_path, seeds=2, iterations=4, samples=48, workers=1, console=quiet)
    assert [row["value"] for row in found["settings"]] == list(rate.values)
    assert found["tune"][0]["chosen"] in {"1e-05", "0.00015"}
    assert (tmp_path / "optimizer.lr.png").stat().st_size > 10_000
    before = (tmp_path / "runs.jsonl").read_bytes()
    assert settings.settings(tmp_path, seeds=2, iterations=4, samples=48, workers=1, console=quiet) == found
    assert (tmp_path / "runs.jsonl").read_bytes() == before
