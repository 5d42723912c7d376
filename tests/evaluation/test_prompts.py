"""The set of prompts that ships: unique, tagged, balanced, filmable in length; and prompt files of users."""

import json
import re
from collections import Counter
from itertools import combinations

import pytest

pytest.importorskip("rapidocr_onnxruntime")

from sage_grpo.config import ConfigError
from sage_grpo.data.prompts import PromptError
from sage_grpo.evaluation.prompts import find_tasks
from sage_grpo.rewards.ocr import wanted_text

TASKS = find_tasks("videos", "wan")
TAGS = {
    "subject": 6,
    "motion": 4,
    "camera": 7,
    "text": 3,
    "count": 5,
    "emotion": 8,
}
CAMERA = {
    "fixed": r"fixed|static|locked|camera at",
    "pan": r"\b(pan|tilt)",
    "aerial": r"drone|aerial|helicopter",
    "handheld": r"handheld",
    "tracking": r"track|follow|rac|travel|slid|glid|keep|chas|beside|driv",
    "dolly": r"dolly|doll|push|pull|mov|zoom|clos|back|creep|glid|drift|retreat",
}


def words(text):
    return re.findall(r"\w+", text.lower())


@pytest.mark.slow
def test_the_set_is_large_and_unique():
    assert len(TASKS) >= 240
    assert len({task.id for task in TASKS}) == len({task.prompt.text for task in TASKS}) == len(TASKS)
    for task, other in combinations(TASKS, 2):  # not by filling a template
        a, b = set(words(task.prompt.text)), set(words(other.prompt.text))
        assert len(a & b) / len(a | b) < 0.5, (task.prompt.text, other.prompt.text)


@pytest.mark.parametrize("tag", TAGS)
def test_every_prompt_has_every_tag_and_every_value_enough_prompts(tag):
    count = Counter(task.tags[tag] for task in TASKS)
    assert len(count) == TAGS[tag]
    assert min(count.values()) >= 15, count


@pytest.mark.parametrize("other", ["motion", "camera", "text"])
def test_subjects_are_not_confounded_with(other):
    """Every subject comes with every value."""
    pairs = {(task.tags["subject"], task.tags[other]) for task in TASKS}
    assert len(pairs) == TAGS["subject"] * TAGS[other]


def test_length_and_ending():
    for task in TASKS:
        assert 12 <= len(task.prompt.text.split()) <= 45, task
        assert task.prompt.text[0].isupper(), task
        assert task.prompt.text[-1] == ".", task


def test_quoted_text_is_the_column_that_ocr_reads():
    for task in TASKS:
        quoted = re.findall(r'"([^"]+)"', task.prompt.text)
        given = task.prompt.columns.get("text")
        assert [given] == (quoted or [None]), task
        assert wanted_text(task.prompt) == given
        assert task.tags["text"] == ("none" if not given else "word" if len(given.split()) == 1 else "phrase")


def test_a_camera_that_is_tagged_is_asked_for():
    for task in TASKS:
        camera = task.tags["camera"]
        if camera != "unspecified":
            assert re.search(CAMERA[camera], task.prompt.text.lower()), task
        else:
            assert "camera" not in task.prompt.text.lower(), task
            assert "drone" not in task.prompt.text.lower(), task


def test_counts_that_are_tagged_are_said():
    for task in TASKS:
        if task.tags["count"] == "three to six":
            assert {"three", "four", "five", "six"} & set(words(task.prompt.text)), task


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_file_of_ones_own(tmp_path):
    path = write(tmp_path / "p.jsonl", {"prompt": "a cat", "tags": {"kind": "pet"}, "text": "x"}, {"prompt": "a sea"})
    cat, sea = find_tasks(path, "wan")
    assert (cat.id, cat.tags, dict(cat.prompt.columns)) == ("0", {"kind": "pet"}, {"text": "x"})
    assert (sea.id, sea.tags) == ("1", {})
    assert find_tasks(path, "wan", ["kind=pet"]) == [cat]
    (tmp_path / "p.csv").write_text("prompt,tag.kind\na cat,pet\n")
    assert find_tasks(str(tmp_path / "p.csv"), "wan")[0].tags == {"kind": "pet"}


def test_the_laboratory_has_tags_of_its_own():
    tasks = find_tasks(None, "shapes")
    assert len(tasks) == 48
    assert tasks[0].tags == {"shape": "circle", "colour": "red", "direction": "left", "training": "kept out"}
    assert len(find_tasks(None, "shapes", ["training=kept out"])) == 12
    assert len(find_tasks(None, "shapes", ["shape=circle", "colour=red", "colour=blue"], limit=5)) == 5


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": "a cat"}], "no column 'prompt'"),
        ([{"prompt": "a", "id": "1"}, {"prompt": "b", "id": "1"}], "prompts 1 and 2 share the id '1'"),
        ([{"prompt": "a", "id": "../x"}], "not fit for a file's name"),
        ([{"prompt": "a", "tags": ["x"]}], "are no object"),
    ],
)
def test_mistakes_in_a_file(tmp_path, rows, message):
    with pytest.raises(PromptError, match=re.escape(message)):
        find_tasks(write(tmp_path / "p.jsonl", *rows), "wan")


def test_other_mistakes():
    with pytest.raises(PromptError, match="neither a file nor a set that ships \\(gallery, videos\\)"):
        find_tasks("video", "wan")
    with pytest.raises(ConfigError, match="no prompt has the value 'animals'; did you mean 'animal'"):
        find_tasks("videos", "wan", ["subject=animals"])
    with pytest.raises(ConfigError, match="have the tags camera, count, emotion, motion, subject, text"):
        find_tasks("videos", "wan", ["size=large"])
    with pytest.raises(ConfigError, match="together"):
        find_tasks(None, "shapes", ["shape=circle"], limit=None) and find_tasks(
            "videos", "wan", ["emotion=anger", "motion=change"]
        )
