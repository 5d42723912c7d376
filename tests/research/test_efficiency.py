"""Passes until a reward: how they are counted, when a reward is reached, and what is concluded."""

import json
import math

import numpy as np
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from research import efficiency
from research.__main__ import app
from research.budgeted_run import REFERENCE, BudgetedRun, PassCounter, RewardProbe
from research.compare import candidates, passes_per_video, setting
from research.efficiency import MEASURED, PAPER, SAID, SETTINGS, as_markdown, crossing, draw, judge, whole_budget
from sage_grpo.config import load_recipe
from sage_grpo.core.loop import Loop
from sage_grpo.core.passes import forward_passes
from sage_grpo.data.prompts import open_prompts
from sage_grpo.lab.shapes.world import all_prompts
from sage_grpo.training.build import build_model, build_rewards


def test_a_reward_is_reached_between_two_looks():
    passes, reward = [0, 100, 200, 300], [0.0, 0.2, 0.6, 0.5]
    assert crossing(passes, reward, 0.1) == 50
    assert crossing(passes, reward, 0.4) == 150
    assert crossing(passes, reward, 0.6) == 200
    assert crossing(passes, reward, 0.7) is None
    assert crossing(passes, reward, -1) == 0


def made_up(speed, seeds=6, end=0.0):
    """Straight lines to a reward of about 1, so much faster; distances differ by `end`."""
    rng = np.random.default_rng(0)
    slopes = 1 + 0.05 * rng.standard_normal(seeds)
    return [
        {
            "passes": [0, 50, 100],
            "reward": [0.0, 0.5 * speed * slope, speed * slope],
            "on_target": speed > 1 and {"reward": 1, "accuracy": 0.8, "distance": 0.1 + end / 5, "diversity": 0.5},
            "evaluation": {"reward": speed, "accuracy": 0.9, "distance": 0.1 + end, "diversity": 0.5},
        }
        for slope in slopes
    ]


def test_the_verdict_on_made_up_runs(tmp_path):
    runs = {PAPER: made_up(1), "fast": made_up(5, end=0.02), "window": made_up(0.5)}
    paper, fast, window = judge(runs, dict.fromkeys(runs, 1e-3))
    assert paper.times_fewer is None
    assert fast.times_fewer == pytest.approx((5, 5, 5))  # equal seeds: what differs between seeds is no error
    assert fast.reached == 6
    assert fast.against["distance"].mean == pytest.approx(0.02)
    assert fast.at_reward["distance"].mean == pytest.approx(0.02 / 5)
    assert window.at_reward["reward"].mean == pytest.approx(-0.5)  # never there: at its end
    assert (window.reached, window.times_fewer) == (0, (1, 1, 1))
    table = as_markdown([paper, fast, window])
    assert "5.0 [5.0, 5.0]" in table
    assert "–, 0 of 6" in table
    draw(runs, tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 10_000


def test_one_seed_that_never_arrives_is_counted_as_no_saving():
    runs = {PAPER: made_up(1), "fast": [*made_up(5)[:5], made_up(0.5)[5]]}
    _, fast = judge(runs, dict.fromkeys(runs, 1e-3))
    assert fast.reached == 5
    assert fast.times_fewer[0] == pytest.approx(5 ** (5 / 6))
    assert fast.times_fewer[1] < 3


@pytest.mark.slow
@pytest.mark.parametrize("name", [PAPER, "window", "second-order", "fast", "per-prompt", "size-2", "best-worst-1"])
def test_passes_are_counted_as_they_are_planned(name):
    config = load_recipe(REFERENCE, [*SETTINGS[name], "run.iterations=6"])
    assert counted(config, 6) == pytest.approx(6 * forward_passes(config), rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo", "nft", "awm"])
def test_passes_of_objectives_with_guided_rollouts(name):
    config = load_recipe(REFERENCE, [*setting(name, "guided"), *candidates(name)[0], "run.iterations=3"])
    assert counted(config, 3) == pytest.approx(3 * forward_passes(config, branches=2), rel=1e-9)
    assert passes_per_video(name, candidates(name)[0], "guided") > 1.3 * passes_per_video(name, candidates(name)[0])


def counted(config, iterations):
    """By hooks, without learning."""
    model, (reward, weights) = build_model(config), build_rewards(config)
    config = config.model_copy(update={"policy": config.policy.model_copy(update={"reward_weights": weights})})
    counter = PassCounter(model.module)
    still = torch.optim.SGD(model.module.parameters(), lr=0.0)
    loop = Loop(model, reward, open_prompts(all_prompts()), config, still)
    loop._checked = True  # the gate looks once per run
    loop.run(iterations)
    return counter.passes


def test_every_setting_is_said_and_fits():
    assert set(SAID) == set(SETTINGS)
    assert whole_budget() == 80128
    for name, overrides in SETTINGS.items():
        assert load_recipe(REFERENCE, list(overrides)).rollouts in (32, 64), name


def test_the_recipe_is_the_setting_that_was_measured():
    recipe, measured = load_recipe("lab-paper-fast"), load_recipe(REFERENCE, [*SETTINGS["fast"], "optimizer.lr=1.5e-4"])
    assert recipe.model_dump(exclude={"run"}) == measured.model_dump(exclude={"run"})
    assert forward_passes(recipe) * recipe.run.iterations == pytest.approx(whole_budget() / 5, rel=0.02)


@pytest.mark.slow
def test_a_race_looks_on_its_way_and_ends_with_its_budget(tmp_path):
    run = BudgetedRun("fast", SETTINGS["fast"], 0, 700, 3, 4, tmp_path, target=-1.0)
    result = run.run()
    assert len(result["passes"]) == len(result["reward"]) == 4
    assert set(result["on_target"]) == set(result["evaluation"])
    assert result["passes"][0] == 0
    assert 700 <= result["passes"][-1] < 1000
    assert BudgetedRun("fast", SETTINGS["fast"], 1, 700, 3, 4, tmp_path).key != run.key


@pytest.mark.slow
def test_a_race_that_was_stopped_leaves_no_result(tmp_path, monkeypatch):
    """A signal lets a run end in order, long before its passes are spent."""
    run = BudgetedRun("fast", SETTINGS["fast"], 0, 700, 3, 4, tmp_path)
    monkeypatch.setattr(RewardProbe, "on_iteration", lambda watch, loop, metrics: loop.stop("a signal"))
    with pytest.raises(RuntimeError, match="was stopped after 0 of 700 passes"):
        run.run()


@pytest.mark.slow
def test_the_whole_command_at_a_small_size(tmp_path, monkeypatch):
    monkeypatch.setattr(efficiency, "whole_budget", lambda: 3000)
    monkeypatch.setattr(efficiency, "RATES", (3e-4,))
    outcomes = efficiency.efficiency(
        tmp_path, seeds=2, samples=4, only=["fast"], workers=2, console=Console(quiet=True)
    )
    assert [o.name for o in outcomes] == [PAPER, "fast"]
    written = json.loads((tmp_path / "results.json").read_text())
    assert [row["setting"] for row in written["settings"]] == [PAPER, "fast"]
    assert all(math.isfinite(written["settings"][1]["ends"][key][0]) for key in MEASURED)
    assert (tmp_path / "efficiency.png").exists()


def test_a_misspelt_setting():
    result = CliRunner().invoke(app, ["efficiency", "--out", "x", "--only", "fats"])
    assert result.exit_code == 2
    assert "did you mean 'fast'" in " ".join((result.stderr or result.output).split())
