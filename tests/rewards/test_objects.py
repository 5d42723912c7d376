"""GenEval's requirements: read from prompt files, and judged on boxes made by hand."""

import json
import math

import pytest

pytest.importorskip("hypothesis")
pytest.importorskip("transformers")

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from rewards.geneval import ROWS, at
from sage_grpo.core.protocols import Prompt
from sage_grpo.data.prompts import open_prompts
from sage_grpo.rewards.errors import RewardError
from sage_grpo.rewards.frames import Unscorable
from sage_grpo.rewards.objects import PLACES, Line, Thing, distinct, judge, places, requirements

pytestmark = pytest.mark.slow


def row(*xs, colour=None):
    return [Thing(at(x, 0), colour) for x in xs]


DOG = Line("dog")


# Requirements, from boxes


@pytest.mark.parametrize(("number", "share"), [(0, 0), (1, 0.5), (2, 1), (3, 1), (9, 1)])
def test_as_many_as_asked_and_more_do_no_harm(number, share):
    assert judge([Line("dog", 2)], [], {"dog": row(*range(number))}) == (share, share == 1)


@pytest.mark.parametrize(("number", "score"), [(0, 0), (1, 0.5), (2, 1), (3, 3 / 4), (5, 1 / 2)])
def test_exactly_two_is_two_and_not_three(number, score):
    """So GenEval asks for a number: the score falls on both sides, and nothing at all is worth nothing."""
    found = {"dog": row(*range(number))}
    assert judge([Line("dog", 2)], [Line("dog", 3)], found) == (score, score == 1)


def test_what_is_excluded_costs():
    assert judge([DOG], [Line("cat")], {"dog": row(0), "cat": []}) == (1, 1)
    assert judge([DOG], [Line("cat")], {"dog": row(0), "cat": row(3)}) == (1 / 2, 0)
    assert judge([DOG], [Line("cat"), Line("cow")], {"dog": row(0), "cat": row(3), "cow": row(1, 2)}) == (1 / 6, 0)


def test_each_thing_is_asked_for_by_itself():
    assert judge([DOG, Line("cat")], [], {"dog": row(0)}) == (1 / 2, 0)
    assert judge([DOG, Line("cat")], [], {"dog": row(0), "cat": row(3)}) == (1, 1)
    assert judge([DOG, Line("cat")], [], {}) == (0, 0)


def test_colour_is_that_of_the_surest():
    red = [Line("car", 1, "red")]
    assert judge(red, [], {"car": row(0, colour="red")}) == (1, 1)
    assert judge(red, [], {"car": row(0, colour="blue")}) == (1 / 2, 0)
    assert judge(red, [], {"car": row(0, colour="blue") + row(9, colour="red")}) == (1 / 2, 0)
    assert judge(red, [], {}) == (0, 0)
    two = [Line("car", 2, "red")]
    assert judge(two, [], {"car": row(0, colour="red") + row(9, colour="blue")}) == (3 / 4, 0)
    assert judge(two, [], {"car": row(0, colour="red")}) == (1 / 2, 0)


@pytest.mark.parametrize(
    ("x", "y", "where"),
    [(-30, 0, "left of"), (30, 0, "right of"), (0, -30, "above"), (0, 30, "below")],  # y goes down
)
def test_place(x, y, where):
    assert places(at(x, y), at(0, 0)) == {where}
    for asked in PLACES:
        found = {"dog": [Thing(at(x, y))], "cat": [Thing(at(0, 0))]}
        score = judge([Line("cat"), Line("dog", place=(asked, 0))], [], found)
        assert score == ((1, 1) if asked == where else (2 / 3, 0))


def test_between_two_places_are_both():
    assert places(at(-30, 30), at(0, 0)) == {"left of", "below"}


def test_margin_is_a_tenth_of_both_sizes_along_that_side():
    """Boxes of 10 beside each other: d − 2 > d / 2."""
    assert places(at(3.99, 0), at(0, 0)) == set()
    assert places(at(4.01, 0), at(0, 0)) == {"right of"}
    assert places(at(0, 4.01), at(0, 0)) == {"below"}
    assert places(at(6.9, 0, width=25), at(0, 0)) == set()  # d − 3.5 > d / 2
    assert places(at(7.1, 0, width=25), at(0, 0)) == {"right of"}
    assert places(at(4.01, 0, height=50), at(0, 0)) == {"right of"}  # the other side does not matter
    assert places(at(0, 0), at(0, 0)) == set()


BOXES = st.builds(at, *[st.floats(-100, 100)] * 2, *[st.floats(1, 60)] * 2)
OTHER_WAY = dict(zip(PLACES, ("right of", "left of", "below", "above"), strict=True))
ON_ITS_SIDE = dict(zip(PLACES, ("above", "below", "left of", "right of"), strict=True))


def by_directions(box, other):
    """The rule once more: the offset, shortened along each axis by the margin, over its whole length."""
    box, other = np.array(box).reshape(2, 2), np.array(other).reshape(2, 2)
    offset = box.mean(0) - other.mean(0)
    shortened = [
        math.copysign(max(0.0, abs(d) - 0.1 * s), d)
        for d, s in zip(offset, np.ptp(box, 0) + np.ptp(other, 0), strict=True)
    ]
    x, y = np.array(shortened) / (math.dist(offset, (0, 0)) or 1)
    names = {"left of": -x, "right of": x, "above": -y, "below": y}
    return {name for name, part in names.items() if part > 0.5}, min(abs(abs(p) - 0.5) for p in (x, y))


@given(BOXES, BOXES)
def test_places_are_those_of_the_rule(box, other):
    expected, near = by_directions(box, other)
    if near > 1e-9:  # else rounding decides
        assert places(box, other) == expected
        assert places(other, box) == {OTHER_WAY[name] for name in expected}
        turned, turned_other = ((b[1], b[0], b[3], b[2]) for b in (box, other))
        assert places(turned, turned_other) == {ON_ITS_SIDE[name] for name in expected}
        assert places(tuple(7 * c for c in box), tuple(7 * c for c in other)) == expected


def test_every_pair_must_stand_so():
    include = [Line("cat", 2), Line("dog", place=("left of", 0))]
    assert judge(include, [], {"cat": row(30, 60), "dog": row(0)}) == (1, 1)
    assert judge(include, [], {"cat": row(30, -60), "dog": row(0)}) == (pytest.approx(2.5 / 3), 0)
    assert judge(include, [], {"cat": row(30), "dog": row(0)}) == (pytest.approx(2 / 3), 0)
    assert judge(include, [], {"dog": row(0)}) == (pytest.approx(1 / 3), 0)


LINES = st.builds(Line, st.sampled_from("abc"), st.integers(1, 3), st.sampled_from([None, "red"]))
THINGS = st.lists(st.builds(Thing, BOXES, st.sampled_from(["red", "blue"])), max_size=5)
FOUND = st.fixed_dictionaries(dict.fromkeys("abc", THINGS))


@given(st.lists(LINES, min_size=1, max_size=4), st.lists(LINES, max_size=2), FOUND)
def test_verdict_is_that_every_requirement_is_met(include, exclude, found):
    score, verdict = judge(include, exclude, found)
    met = all(
        len(things := found[line.name][: line.count]) == line.count
        and (line.colour is None or all(thing.colour == line.colour for thing in things))
        for line in include
    ) and not any(len(found[line.name]) >= line.count for line in exclude)
    assert 0 <= score <= 1
    assert verdict == met == (score == 1)
    assert judge(include[::-1], exclude[::-1], found) == (pytest.approx(score), verdict)


@given(st.lists(BOXES, max_size=8))
def test_boxes_that_share_half_are_one(boxes):
    def shared(a, b):
        inner = [max(0.0, min(a[i + 2], b[i + 2]) - max(a[i], b[i])) for i in (0, 1)]
        area = [(c[2] - c[0]) * (c[3] - c[1]) for c in (a, b)]
        return math.prod(inner) / (sum(area) - math.prod(inner))

    kept = distinct(torch.tensor(boxes, dtype=torch.float64).reshape(-1, 4))
    expected = []
    for i, box in enumerate(boxes):
        if all(shared(box, boxes[j]) < 0.5 for j in expected):
            expected.append(i)
    assert kept == expected


# Requirements, from prompt files

READ = [
    ([Line("dog", 2)], [Line("dog", 3)]),
    ([Line("wine glass", 1, "red")], []),
    ([Line("cat"), Line("dog", place=("left of", 0))], []),
]


def write(folder, kind):
    rows = [{"prompt": f"a photo {i}", **row} for i, row in enumerate(ROWS)]
    path = folder / f"prompts.{kind}"
    as_text = [
        {"prompt": row["prompt"], **{c: json.dumps(row[c]) if row.get(c) else None for c in ("include", "exclude")}}
        for row in rows
    ]
    if kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    elif kind == "csv":
        quoted = [[(row[c] or "").replace('"', '""') for c in ("prompt", "include", "exclude")] for row in as_text]
        path.write_text(
            "\n".join(["prompt,include,exclude", *(",".join(f'"{f}"' for f in fields) for fields in quoted)])
        )
    else:
        arrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(arrow.Table.from_pylist(as_text), path)
    return path


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_a_prompt_file_of_geneval_is_read(tmp_path, kind):
    prompts = open_prompts(write(tmp_path, kind), shuffle=False)(0, 4)
    assert [requirements(prompt) for prompt in prompts[:3]] == READ
    with pytest.raises(Unscorable, match="no column 'include'"):
        requirements(prompts[3])


def test_lists_in_parquet_are_read(tmp_path):
    """There a list is of one kind, so a place has its number as text; what a row has not is None."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = json.loads(json.dumps(ROWS[:3]).replace('"left of", 0', '"left of", "0"'))
    parquet.write_table(arrow.Table.from_pylist([{"prompt": "x", **row} for row in rows]), tmp_path / "p.parquet")
    assert [requirements(p) for p in open_prompts(tmp_path / "p.parquet", shuffle=False)(0, 3)] == READ


@pytest.mark.parametrize(
    ("include", "message"),
    [
        ([{"count": 1}], 'needs a list of such as {"class": "dog"'),
        ([{"class": " "}], "needs a list"),
        ([{"class": 3}], "needs a list"),
        ([{"class": "dog", "count": 0}], "needs a list"),
        ([{"class": "dog", "count": "two"}], "needs a list"),
        ({"class": "dog"}, "needs a list"),
        ("dog", "needs a list"),
        (7, "needs a list"),
        ([{"class": "cat"}, {"class": "dog", "position": ["near", 0]}], "needs a list"),
        ([{"class": "cat"}, {"class": "dog", "position": ["above"]}], "needs a list"),
        ([{"class": "cat"}, {"class": "dog", "position": ["above", 1]}], "'dog' is to be above number 1, which is no"),
        ([{"class": "cat"}, {"class": "dog", "position": ["above", -2]}], "they count from 0"),
    ],
)
def test_wrong_requirements_are_told(include, message):
    with pytest.raises(RewardError, match=message):
        requirements(Prompt("", {"include": include}))


def test_a_name_of_a_megabyte_is_masked():
    with pytest.raises(Unscorable, match="characters"):
        requirements(Prompt("", {"include": [{"class": "x" * 1_000_000}]}))
