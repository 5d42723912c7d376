"""Marks and cells of the tables, against answers worked out by hand."""

import pytest

from sage_grpo.evaluation.table import (
    ALONE,
    STANDS,
    decimals,
    grids,
    losses,
    main_table,
    markdown,
    percent,
    plain,
    ranked,
)


@pytest.mark.parametrize(
    ("values", "lower", "places"),
    [
        ([0.1, 0.4, 0.2, 0.3], False, [None, 1, 3, 2]),
        ([0.1, 0.4, 0.2, 0.3], True, [1, None, 2, 3]),
        ([0.5, 0.5, 0.1, 0.0], False, [1, 1, 3, None]),
        ([0.5, None, 0.1], False, [1, None, 2]),
        ([0.0, 0.0, 0.0, 0.0], False, [1, 1, 1, 1]),
    ],
)
def test_places(values, lower, places):
    assert ranked(values, lower) == places


@pytest.mark.parametrize(("values", "digits"), [([0.5], 3), ([12.0, 0.1], 2), ([0.0123], 4), ([0.0], 2), ([None], 2)])
def test_decimals(values, digits):
    assert decimals(values) == digits


def test_numbers_are_typeset():
    assert plain(-0.0004, 3, "+") == "+0.000"
    assert plain(-1.5, 2) == "−1.50"
    assert plain(None, 2) == "–"
    assert percent({"mean": 0.625, "low": 0.5, "high": 0.75}) == "62 [50, 75]"


def result(**more):
    def one(mean):
        return {"mean": mean, "low": mean - 0.1, "high": mean + 0.1, "prompts": 20, "videos": 40, "masked": 0}

    def pair(source, against, score, mean, stands, excludes):
        return {
            "source": source,
            "against": against,
            "score": score,
            **one(mean),
            "p": 0.01,
            "stands": stands,
            "excludes_zero": excludes,
            "wins": one(0.6),
        }

    scores = [
        {"name": "Overall", "type": "", "trained": True, "lower": False, "weight": None},
        {"name": "VQ", "type": "shapes", "trained": True, "lower": False, "weight": 0.5},
        {"name": "MQ", "type": "shapes", "trained": True, "lower": False, "weight": -1.0},
        {"name": "distance", "type": "held", "trained": False, "lower": True, "weight": None},
    ]
    means = {"base": (0.1, 0.2, 0.1, 0.30), "paper": (0.5, 0.3, 0.1, 0.32), "best": (0.7, 0.1, 0.1, 0.31)}
    return {
        "reference": "base",
        "sources": {name: {} for name in means},
        "prompts": 20,
        "seeds": [0, 1],
        "scores": scores,
        "note": None,
        "masked": {"base": {"VQ": {"it has no pixels": 3}}, "paper": {"VQ": {"timeout": 1}}},
        "means": {n: {s["name"]: one(v) for s, v in zip(scores, row, strict=True)} for n, row in means.items()},
        "comparisons": [
            pair(a, b, s["name"], 0.4, a == "best", True)
            for a, b in (("paper", "base"), ("best", "base"), ("best", "paper"))
            for s in scores
        ],
        "tags": [
            {"tag": "kind", "value": "x|y", **pair("best", "base", s["name"], 0.05, False, False)} for s in scores
        ],
    } | more


def test_the_main_table_has_the_shape_of_the_papers():
    text = markdown(result())
    lines = text.splitlines()
    assert lines[2] == "| source | Overall ↑ | VQ ↑ | MQ ↑ | distance ↓ (held out) |"
    assert lines[4] == "| base | *0.100* | <u>0.200</u> | **0.100** | **0.300** |"
    assert lines[5] == "| paper | <u>0.500</u> | **0.300** | **0.100** | *0.320* |"
    assert lines[6] == "| best | **0.700** | *0.100* | **0.100** | <u>0.310</u> |"
    assert "Overall is 0.5·VQ − 1·MQ." in lines[8]
    assert "Not scored, and in no mean: VQ of 4 videos (it has no pixels)" in lines[8]


def test_differences_wins_and_tags():
    text = markdown(result())
    assert f"| paper | +0.400 [+0.300, +0.500] {ALONE} |" in text
    assert f"| best | +0.400 [+0.300, +0.500] {STANDS} |" in text
    assert "| best | 60 [50, 70] | 60 [50, 70] | – |" in text  # row against column
    assert "| base | – | 40 [30, 50] | 40 [30, 50] |" in text
    assert "| kind: x\\|y | 20 | +0.050 [−0.050, +0.150] | +0.050 [−0.050, +0.150] |" in text  # Overall and held out
    assert "## Difference to base, held out" in text
    assert text.count("Benjamini-Hochberg") == 2  # of the differences, and of the tags


def test_what_got_worse_is_said():
    assert losses(result()) == "Worse than base by a difference that stands (●): distance, held out (best)."


def test_a_score_without_any_value_is_a_dash():
    found = result()
    for one in found["means"].values():
        one["VQ"] |= {"mean": None, "low": None, "high": None}
    assert [row[2] for row in main_table(found).rows] == ["–"] * 3
    assert len(grids(found)) == 6
