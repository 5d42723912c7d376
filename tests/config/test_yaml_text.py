"""YAML that would hang or crash whoever reads it is refused in a sentence, and at once."""

import time

import pytest

from sage_grpo.config import ConfigError, load_recipe
from sage_grpo.config.yaml_text import YamlError, read_yaml


def bomb(line):
    return "a0: &a0 [1, 2, 3, 4, 5, 6, 7, 8, 9]\n" + "".join(
        f"a{i}: &a{i} " + line % ",".join([f"*a{i - 1}"] * 9) + "\n" for i in range(1, 9)
    )


BAD = {
    "aliases": (bomb("[%s]"), "more than 100,000 values"),
    "merged": (bomb("{<<: [%s]}").replace("[1, 2, 3, 4, 5, 6, 7, 8, 9]", "{k: 1}"), "more than 100,000 values"),
    "a circle": ("a: &a [*a]", "goes round in circles"),
    "lists": ("a: " + "[" * 5000 + "]" * 5000, "more than 50 levels"),
    "mappings": ("{a: " * 5000, "more than 50 levels"),
    "blocks": ("- " * 20000 + "x", "more than 50 levels"),
    "a number": ("a: " + "9" * 5000, "more than 100 digits"),
    "a number of base 60": ("a: 1:" + "59:" * 5000 + "1", "more than 100 digits"),
    "a date": ("a: 2026-99-99", "month must be in"),
    "an object": ('a: !!python/object/apply:os.system ["id"]', "could not determine a constructor"),
    "half a list": ("a: [1", "expected ',' or ']'"),
    "much": ("a: " + "x" * 100_000, "more than 100,000 characters"),
}


@pytest.mark.parametrize("name", BAD)
def test_it_is_refused_at_once(name, tmp_path):
    text, words = BAD[name]
    began = time.process_time()
    with pytest.raises(YamlError, match=words):
        read_yaml(text)
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(ConfigError, match="is not valid YAML"):
        load_recipe(tmp_path / "bad.yaml")
    assert time.process_time() - began < 5  # more than a minute before


@pytest.mark.parametrize("value", ["[1", "{", '!!python/object/apply:os.system ["id"]', "&a [*a]", "9" * 5000])
def test_an_override_is_read_in_the_same_way(value):
    with pytest.raises(ConfigError, match=r"^override 'policy.clip=.*the value is not valid YAML"):
        load_recipe("lab", [f"policy.clip={value}"])


def test_a_circle_of_recipes_by_another_way(tmp_path):
    (tmp_path / "loop.yaml").write_text(f"extends: ../{tmp_path.name}/loop.yaml\n")
    with pytest.raises(ConfigError, match="goes round in circles"):
        load_recipe(tmp_path / "loop.yaml")


@pytest.mark.parametrize("text", ["a: 1", "a: &x [1, 2]\nb: *x", "", "- 1", "a: {b: {c: [1, {d: 2}]}}"])
def test_plain_yaml_is_read(text):
    assert (
        read_yaml(text)
        == {
            "a: 1": {"a": 1},
            "a: &x [1, 2]\nb: *x": {"a": [1, 2], "b": [1, 2]},
            "": None,
            "- 1": [1],
            "a: {b: {c: [1, {d: 2}]}}": {"a": {"b": {"c": [1, {"d": 2}]}}},
        }[text]
    )
