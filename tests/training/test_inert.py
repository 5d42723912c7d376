"""`train --check` notes what a recipe sets and what does nothing; each note is held against a real update."""

import pytest
import yaml
from typer.testing import CliRunner

from gaussian_model import GaussianModel
from sage_grpo.cli import app
from sage_grpo.config import load_recipe
from sage_grpo.config.load import shipped_recipes
from sage_grpo.training.inert import inert_terms
from support import make_loop, perturbed

TWO = {"policy": {"num_iterations": 2}}
QUICK = {
    "sampling": {"eta": 0.7, "steps": 6, "shift": 3.0},
    "policy": {"prompts_per_iteration": 2, "batch_size": 8},
    "kl": {"warmup": 0, "high": 0.1},
}
AWM = {
    "policy": {"objective": "awm", "points": 2},
    "sampling": {"eta": 0, "shared_initial_noise": False},
}
CASES = [
    ({}, ["kl.estimator=sampled or policy.num_minibatches=2."]),
    (TWO, []),
    ({"kl": {"estimator": "sampled"}}, []),
    ({"kl": {"old_weight": 0}}, []),
    ({"kl": {"anchor": "none"}}, ["It is the only KL of this recipe."]),
    (AWM, ["it acts with policy.num_minibatches=2."]),
    (AWM | {"kl": {"outside_weight": 0.1, "old_weight": 0}}, ["trains at all noise levels, so nothing is outside"]),
    ({"policy": {"objective": "nft", "points": 2}, "sampling": AWM["sampling"]}, []),
    ({"kl": {"high": 0, "low": 0}}, ["kl.high=0: no KL is trained on, but the anchor is evaluated"]),
    ({"kl": {"high": 0, "low": 0, "anchor": "none"}}, []),
    (TWO | {"kl": {"ref_model_sync_steps": 1}}, ["a fresh copy of the policy at each update"]),
    (TWO | {"kl": {"ref_model_sync_steps": 1, "decay": 0.5}}, []),
    (TWO | {"kl": {"anchor_weight": 0}}, ["kl.anchor_weight=0: the anchor is evaluated and has no weight"]),
]


def recipe(changes):
    return load_recipe({section: QUICK.get(section, {}) | changes.get(section, {}) for section in {**QUICK, **changes}})


@pytest.mark.parametrize(("changes", "expected"), CASES)
def test_notes(changes, expected):
    notes = inert_terms(recipe(changes))
    assert len(notes) == len(expected)
    assert all(words in note for words, note in zip(expected, notes, strict=True))


@pytest.mark.parametrize("changes", [changes for changes, _ in CASES if "sampling" not in changes])
def test_a_penalty_that_is_always_zero_has_a_note_and_no_other(changes):
    """Over four iterations: which KL is zero at every update is what the notes say."""
    config = recipe(changes)
    loop, seen = make_loop(config, model=perturbed(GaussianModel()))
    loop.run(4)
    silent = {
        name
        for name, column, used in (
            ("ref_model_sync_steps", "kl_anchor", config.kl.anchor != "none" and config.kl.high > 0),
            ("old_weight", "kl_old", config.kl.old_weight > 0 and config.kl.high > 0),
        )
        if used and all(update.mean(column) == 0 for update in seen.updates)
    }
    if config.kl.estimator == "sampled":  # its value is 0 where its gradient is not: tests/core/test_sampled_kl.py
        silent -= {"old_weight"}
    noted = {
        name for name in ("ref_model_sync_steps", "old_weight") for note in inert_terms(config) if f"kl.{name}" in note
    }
    assert noted == silent


def test_no_noise():
    (note, _) = inert_terms(recipe({"sampling": {"eta": 0}}))
    assert "no step of a rollout has noise" in note


def test_the_command_keeps_the_recipe_apart():
    told = CliRunner().invoke(app, ["train", "hunyuan15-64gpu", "--check"])
    assert told.exit_code == 0
    assert load_recipe(yaml.safe_load(told.stdout)) == load_recipe("hunyuan15-64gpu")
    assert "note: kl.old_weight: with one update per rollout" in " ".join(told.stderr.split())


@pytest.mark.parametrize("name", [name for name in shipped_recipes() if "released" in name or name == "hunyuan15-8gpu"])
def test_the_released_recipes_have_no_idle_term(name):
    assert inert_terms(load_recipe(name)) == []
