"""What is read from a scorer's source is what its class says."""

import inspect
import json
import subprocess
import sys
from importlib import import_module

import pytest

from sage_grpo import build
from sage_grpo.scoring import catalogue as module
from sage_grpo.scoring.catalogue import catalogue, entry
from sage_grpo.scoring.sources import UNKNOWN, definition, read

ENTRIES = {one.name: one for one in catalogue()}


def class_of(name):
    place, attribute = build.REWARDS[name].split(":")
    return getattr(import_module(place), attribute)


@pytest.mark.parametrize("name", list(build.REWARDS))
def test_source_and_class_agree(name):
    found = ENTRIES[name]
    if found.missing:
        pytest.skip(found.install)
    scorer = class_of(name)
    takes = build.accepted(scorer, scorer) | {"path"} & set(inspect.signature(scorer).parameters)
    assert set(found.required) | set(found.defaults) == takes
    for option, parameter in inspect.signature(scorer).parameters.items():
        if parameter.kind is not parameter.VAR_KEYWORD:
            required = parameter.default is parameter.empty
            assert required == (option in found.required)
            assert required or found.defaults[option] == parameter.default
    if hasattr(scorer, "names") and not isinstance(scorer.names, property):
        assert tuple(scorer.names) == found.scores
    if not found.required and not found.downloads:
        assert tuple(scorer().names) == found.scores
    assert found.groupwise == bool(getattr(scorer, "groupwise", False))
    assert found.presets == getattr(scorer, "presets", {})
    assert found.summary
    assert "\n" not in found.summary


def test_json_is_complete():
    written = json.loads(json.dumps(ENTRIES["videoalign"].as_dict()))
    assert written["scores"] == ["VQ", "MQ", "TA"]
    assert written["options"]["path"] == {"required": True}
    assert written["options"]["fps"] == {"required": False, "default": 24.0}
    assert written["presets"]["B"] == {"VQ": 0.5, "MQ": 0.5, "TA": 1.0}
    assert written["extras"] == ["models"]


def test_only_what_works_as_it_is_counts_as_ready():
    ready = {name for name, one in ENTRIES.items() if one.ready}
    assert {"motion", "sharpness", "ocr"} <= ready
    assert not ready & {"videoalign", "http", "clip", "pickscore", "shapes"}


def test_missing_libraries_are_told_with_the_line_that_installs_them(monkeypatch):
    there = module.find_spec
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "rapidocr_onnxruntime" else there(name))
    found = entry("ocr", build.REWARDS["ocr"])
    assert found.missing == ("rapidocr_onnxruntime",)
    assert found.install == "pip install 'sage-grpo[ocr]'"
    assert not found.ready
    assert found.scores == ("ocr",)  # still known
    monkeypatch.setattr(build, "LINES", {"tool": "pip install --no-deps tool==1"})
    both = module.install_line(["cv2", "tool", "transformers"])
    assert both == "pip install 'sage-grpo[models,ocr]' && pip install --no-deps tool==1"


def test_nothing_heavy_is_imported():
    code = (
        "import sys; from sage_grpo.scoring.catalogue import catalogue; before = set(sys.modules); catalogue(); "
        "assert not {'transformers', 'diffusers', 'onnxruntime', 'cv2'} & set(sys.modules); "
        "assert not [name for name in set(sys.modules) - before if name.startswith('sage_grpo')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


SOURCE = '''
"""Two scorers."""
from sage_grpo.rewards.videoalign import NAMES, VideoAlign
from importlib import import_module
A, B = ("a",), ("b", "c")
def load(): return import_module("cv2")
class Plain(VideoAlign):
    groupwise: bool = True
    def __init__(self, size, *, both: bool = False, kind=load, **rest):
        """Set at the start."""
        self.names = B if both else A
class Late(Plain):
    """Names that only running tells."""
    def __init__(self): self.names = tuple(load())
def function(videos, prompts, power=2): ...
'''


def test_reading_follows_bases_imports_constants_and_choices(tmp_path, monkeypatch):
    (tmp_path / "two_scorers.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    here = read("two_scorers")
    plain, late = definition(here, "Plain"), definition(here, "Late")
    assert plain.attribute("names") == ("a",)
    assert plain.attribute("groupwise") is late.attribute("groupwise") is True
    assert plain.attribute("presets")["A"] == {"VQ": 1.0, "MQ": 1.0, "TA": 1.0}
    assert list(plain.options()) == [
        "size", "both", "kind", "path", "fps", "device", "dtype", "batch_size", "max_frames",
    ]  # fmt: skip
    assert plain.options()["kind"] == "load"
    assert late.attribute("names") is UNKNOWN
    assert late.options() == {}
    assert definition(here, "function").options()["power"] == 2
    found = entry("plain", "two_scorers:Plain", alone=False)
    assert found.extras == (
        "models",
        "ocr",
    )  # accelerate and transformers through videoalign, cv2 by its name in a text
    assert entry("late", "two_scorers:Late").scores is None
    with pytest.raises(LookupError, match="no Other"):
        definition(here, "Other")
