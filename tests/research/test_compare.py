"""Objectives at equal passes: what is run, what is concluded, and that the whole command works at a small size."""

import json
import math

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from research import compare
from research.__main__ import app
from research.budgeted_run import REFERENCE
from research.compare import GROUPS, LIKE, LIMITS, OBJECTIVE_NAMES, OWN, candidates, setting
from research.efficiency import MEASURED, SEARCHED
from research.metrics import metrics_of
from research.objective_results import FIRST, as_markdown, draw, judge
from sage_grpo.config import load_recipe
from sage_grpo.core.objectives import chosen_objective
from sage_grpo.math.objectives import OBJECTIVES
from sage_grpo.statistics import holm


def test_every_objective_has_as_many_candidates():
    assert set(OBJECTIVE_NAMES) == set(OBJECTIVES)
    assert set(OWN) | set(LIKE) == set(OBJECTIVES)
    for name in OWN:
        found = [load_recipe(REFERENCE, [*setting(name), *candidate]) for candidate in candidates(name)]
        assert len({config.model_dump_json() for config in found}) == 12
        assert all(type(chosen_objective(config)) is OBJECTIVES[name] for config in found)
        assert all(config.rollouts == 32 for config in found)


def test_every_group_fits():
    for group, chosen in GROUPS.items():
        assert FIRST in chosen.members
        for name in chosen.members:
            limits = [(limit,) for limit in LIMITS[name]] if chosen.limits else [()]
            for limit in limits:
                recipe = metrics_of(chosen.world).recipe
                config = load_recipe(recipe, [*setting(name, group), *candidates(LIKE.get(name, name))[0], *limit])
                assert type(chosen_objective(config)) is OBJECTIVES[name]


def test_holm_by_hand():
    """0.01 × 4, 0.02 × 3, 0.03 × 2, 0.04: never below the one before."""
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def made_up(gain, seeds=6):
    rng = np.random.default_rng(0)
    own = rng.standard_normal(seeds)  # of a seed: what all objectives share
    noise = np.random.default_rng(1 + round(1000 * gain)).standard_normal(seeds)
    rewards = 1 + 0.5 * own + gain + 0.01 * noise
    return [
        {
            "passes": [0, 50, 100],
            "reward": [0.0, r / 2, r],
            "evaluation": {"reward": r, "accuracy": 0.9, "distance": 0.1, "diversity": 0.5},
        }
        for r in rewards
    ]


def test_the_verdict_on_made_up_runs(tmp_path):
    runs = {"grpo": made_up(0.0), "nft": made_up(0.2), "awm": made_up(0.005)}
    found = {name: candidates(name)[0] for name in runs}
    first, nft, awm = judge(runs, found, dict.fromkeys(runs, 8.0))
    assert first.p == dict.fromkeys(MEASURED, 1.0)
    assert nft.against["reward"].mean == pytest.approx(0.2, abs=0.02)
    assert nft.p["reward"] < 0.001  # seeds differ by far more, and are paired
    assert awm.p["reward"] > 0.05
    # half of what grpo gains, on the straight lines between the looks
    half = np.mean([run["reward"][-1] for run in runs["grpo"]]) / 2
    assert nft.until.mean == pytest.approx(np.mean([min(half / run["reward"][-1], 1) for run in runs["nft"]]) / 10)
    assert nft.reached == sum(run["reward"][-1] >= half for run in runs["nft"])
    assert nft.p["accuracy"] == 1.0
    table = as_markdown([first, nft, awm])
    assert table.count("\u00a0*") == 1
    assert "`nft` KL weight 1, learning rate 7.5e-05" in table
    draw(runs, "all of them", tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 10_000


def test_the_best_of_the_search_and_its_best_limit_go_on(tmp_path):
    """Runs that are made up: the reward says how near a setting is to the one that is best."""
    asked = []

    def run(races):
        asked.append([(run.name, run.seed) for run in races])
        return [{"reward": [0.0, worth(run)]} for run in races]

    def worth(run):
        config = run.config
        best = 1.5e-4 if run.seed == SEARCHED[0] else 3e-4  # the second seed has the last word, and is as loud
        value = -abs(math.log(config.optimizer.lr / best)) - abs(math.log(config.kl.high / 0.5))
        return value - (config.policy.clip == 1e-4 and run.staleness == 0)

    search = compare.Search([FIRST], tmp_path, run, Console(quiet=True))
    found = search.found("stale-2")
    assert found[FIRST][0] == "kl.high=0.5"
    assert found[FIRST][1] in ("optimizer.lr=0.00015", "optimizer.lr=0.0003")
    assert found[FIRST][2] == "policy.clip=1e-3"
    assert [len(races) for races in asked] == [12, 3, 2, 2]
    assert {name for races in asked[2:] for name, _ in races} == {f"search-four-times-{FIRST}"}
    assert search.found("stale-4") == found
    assert len(asked) == 4  # found once for all groups that need it


@pytest.mark.slow
def test_the_whole_command_at_a_small_size(tmp_path, monkeypatch):
    monkeypatch.setattr(compare, "whole_budget", lambda recipe: 2000)
    monkeypatch.setattr(compare, "RATES", (3e-4,))
    monkeypatch.setattr(compare, "OWN", {name: OWN[name][:1] for name in OWN})
    outcomes = compare.compare(
        tmp_path, seeds=2, samples=4, only=["nft"], groups=["once"], workers=2, console=Console(quiet=True)
    )
    assert {group: [o.name for o in rows] for group, rows in outcomes.items()} == {"once": [FIRST, "nft"]}
    written = json.loads((tmp_path / "results.json").read_text())
    assert [row["objective"] for row in written["groups"]["once"]] == [FIRST, "nft"]
    assert written["tried"] == 1
    assert all(math.isfinite(written["groups"]["once"][1]["ends"][key][0]) for key in MEASURED)
    assert (tmp_path / "once.png").exists()
    assert "## One update of a rollout" in (tmp_path / "compare.md").read_text()


@pytest.mark.parametrize(("words", "meant"), [(("--only", "ntf"), "nft"), (("--group", "twise"), "twice")])
def test_a_misspelling(words, meant):
    result = CliRunner().invoke(app, ["compare", "--out", "x", *words])
    assert result.exit_code == 2
    assert f"did you mean '{meant}'" in " ".join((result.stderr or result.output).split())
