"""Settings and metrics under the names of the version before work until the next release."""

import json
import logging

import pytest

from sage_grpo.config import ConfigError, load_recipe
from sage_grpo.config.load import RENAMED_KEYS, _warn_renamed
from sage_grpo.runs.read import RENAMED_METRICS, read_run
from sage_grpo.training.trackers import read_metrics

VALUES = {"kl.beta_position": 0.25, "kl.beta_velocity": 0.75, "kl.velocity": "sampled"}


@pytest.fixture(autouse=True)
def _not_yet_warned():
    _warn_renamed.cache_clear()


@pytest.mark.parametrize("old", RENAMED_KEYS)
@pytest.mark.parametrize("way", ["file", "override", "mapping", "extended"])
def test_old_keys_are_read_with_a_message_that_names_the_new_one(old, way, tmp_path, caplog):
    section, name = old.split(".")
    new = RENAMED_KEYS[old].removeprefix(f"{section}.")
    path = tmp_path / "recipe.yaml"
    path.write_text(f"{section}: {{{name}: {VALUES[old]}}}\nextends: lab-paper\n")
    with caplog.at_level(logging.WARNING):
        if way == "file":
            config = load_recipe(path)
        elif way == "override":
            config = load_recipe("lab-paper", [f"{old}={VALUES[old]}", "seed=1"])
        elif way == "mapping":
            config = load_recipe({section: {name: VALUES[old]}})
        else:
            (tmp_path / "mine.yaml").write_text(f"extends: recipe.yaml\n{section}: {{{new}: {VALUES[old]}}}\n")
            config = load_recipe(tmp_path / "mine.yaml")
    assert getattr(getattr(config, section), new) == VALUES[old]
    assert caplog.messages == [f"{old} is now {RENAMED_KEYS[old]}; the next release no longer reads the old name"]


def test_the_old_option_of_a_scorer_elsewhere(caplog):
    options = {"url": "http://here", "names": ["fit"], "hears": True}
    with caplog.at_level(logging.WARNING):
        config = load_recipe({"rewards": [{"type": "http", "options": options}]})
    assert config.rewards[0].options == {"url": "http://here", "names": ["fit"], "uses_audio": True}
    assert caplog.messages == ["hears is now uses_audio; the next release no longer reads the old name"]


def test_both_names_at_once_are_refused():
    with pytest.raises(ConfigError, match=r"kl.beta_velocity is the old name of kl.old_weight, and both are set"):
        load_recipe({"kl": {"beta_velocity": 0.1, "old_weight": 0.2}})


def test_a_run_of_the_version_before_is_read_under_the_new_names(tmp_path):
    (tmp_path / "config.yaml").write_text("kl: {beta_velocity: 0.3}\n")
    row = {"step": 1, "time": 1.0, "approx_kl": 1.0, "kl_moving": 2.0, "kl_stepwise": 3.0, "steps/kl/004": 4.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    run = read_run(tmp_path)
    assert run.setting("kl.old_weight") == 0.3
    new = {"kl/penalty": 1.0, "kl/anchor": 2.0, "kl/old": 3.0, "steps/kl_penalty/004": 4.0}
    assert {name: run.column(name)[0] for name in new} == new
    assert {name: run.column(name)[0] for name in RENAMED_METRICS} == {"approx_kl": 1, "kl_moving": 2, "kl_stepwise": 3}
    assert read_metrics(tmp_path / "metrics.jsonl")[0] == {"step": 1, "time": 1.0} | new
