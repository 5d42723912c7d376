"""Text rendering: the right words score high, wrong ones low, none nothing; and a missing library names its extra."""

import subprocess
import sys

import pytest

pytest.importorskip("hypothesis")
pytest.importorskip("rapidocr_onnxruntime")

import torch
from hypothesis import given
from hypothesis import strategies as st

from rewards import clips
from sage_grpo.config import ConfigError
from sage_grpo.core.protocols import Prompt
from sage_grpo.registry import resolve_reward
from sage_grpo.rewards.ocr import OCRReward, edit_distance, similarity, wanted_text

SIGN = clips.written("Open Late")


@pytest.fixture(scope="module")
def reader():
    return OCRReward(frames=2, side=160)


def score(reader, clip, prompt):
    scores = reader.score(clip[None], [prompt])
    return scores.values.item() if scores.valid.item() else None


@pytest.mark.parametrize("text", ["Open Late", "42 km/h", "HELLO WORLD"])
def test_right_text(reader, text):
    assert score(reader, clips.written(text), Prompt(f'a sign that says "{text}"')) > 0.9


def test_wrong_text_and_blank_frames(reader):
    assert score(reader, SIGN, Prompt('a sign that says "quick brown fox"')) < 0.3
    assert score(reader, SIGN, Prompt('a sign that says "Open Lane"')) == pytest.approx(7 / 8)
    assert score(reader, torch.full_like(SIGN, 120), Prompt('a sign that says "Open Late"')) == 0


def test_upside_down_is_not_the_text(reader):
    assert score(reader, SIGN.flip(1, 2), Prompt('"Open Late"')) < 0.5


def test_without_wanted_text_it_is_masked(reader, caplog):
    assert score(reader, SIGN, Prompt("a cat's bowl")) is None
    assert "its prompt has no column 'text' and quotes no text" in caplog.text


@pytest.mark.slow
def test_best_and_mean_over_frames():
    clip = torch.cat([SIGN[:1], torch.full_like(SIGN[:1], 120)])
    prompt = Prompt('"open late"')
    assert score(OCRReward(frames=2, side=160), clip, prompt) == 1
    assert score(OCRReward(frames=2, side=160, over="mean"), clip, prompt) == 0.5
    with pytest.raises(ConfigError, match="use over=best or mean"):
        OCRReward(over="median")


def test_without_detection_the_frame_is_one_line():
    reader, line = OCRReward(frames=1, detect=False), SIGN[:, 50:110]
    assert score(reader, line, Prompt('"open late"')) == 1
    assert score(reader, torch.full_like(line, 120), Prompt('"open late"')) == 0


def test_other_text_costs_unless_it_may_be_anywhere():
    assert similarity("bakery OPEN  late 24h", "open late") < 0.6
    assert similarity("bakery OPEN  late 24h", "open late", anywhere=True) == 1
    assert similarity("", "open late", anywhere=True) == similarity("", "open") == 0


@pytest.mark.parametrize(
    ("text", "columns", "wanted"),
    [
        ('a sign "open" over a door "push"', {}, "open push"),
        ("a sign “open” and a «quai»", {}, "open quai"),
        ("a dog's 'no entry' sign", {}, "no entry"),
        ("the dogs' and the cats' house", {}, None),
        ('a sign "open"', {"text": "closed"}, "closed"),
        ('a sign "open"', {"text": None}, "open"),
        ("a year", {"text": 1984}, "1984"),
        ("a cat", {}, None),
    ],
)
def test_wanted_text(text, columns, wanted):
    assert wanted_text(Prompt(text, columns)) == wanted


def slow_distance(a, b):
    if not a or not b:
        return len(a) + len(b)
    steps = slow_distance(a[1:], b) + 1, slow_distance(a, b[1:]) + 1, slow_distance(a[1:], b[1:]) + (a[0] != b[0])
    return min(steps)


words = st.text("abc", max_size=5)


@given(words, words)
def test_edit_distance_is_its_definition(a, b):
    assert edit_distance(a, b) == slow_distance(a, b)
    parts = [a[i:j] for i in range(len(a) + 1) for j in range(i, len(a) + 1)]
    assert edit_distance(a, b, anywhere=True) == min(slow_distance(part, b) for part in parts)


BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            raise {error}
sys.meta_path.insert(0, Block())
from sage_grpo.registry import resolve_reward
try:
    resolve_reward("{reward}")
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reward", "module", "error", "message"),
    [
        (
            "ocr",
            "rapidocr_onnxruntime",
            "ModuleNotFoundError(name=name)",
            "reward 'ocr' needs rapidocr_onnxruntime: pip install 'sage-grpo[ocr]'",
        ),
        (
            "ocr",
            "cv2",
            "ImportError('libGL.so.1: cannot open shared object file')",
            "libGL.so.1: cannot open shared object file; OpenCV for servers needs none of it: "
            "pip install opencv-python-headless",
        ),
        (
            "clip",
            "transformers",
            "ModuleNotFoundError(name=name)",
            "reward 'clip' needs transformers: pip install 'sage-grpo[models]'",
        ),
    ],
)
@pytest.mark.real_start
def test_missing_library_names_the_way_to_it(reward, module, error, message):
    code = BLOCKED.format(reward=reward, module=module, error=error)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("ConfigError")
    assert message in done.stdout


def test_recipes_find_it():
    assert resolve_reward("ocr") is OCRReward
