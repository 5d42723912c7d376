"""GenEval's requirements on boxes made by hand, and OWLv2's boxes against transformers' own, on a tiny checkpoint."""

import json
import math

import pytest

pytest.importorskip("hypothesis")
pytest.importorskip("transformers")

import numpy as np
import torch
import transformers as hf
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from rewards import clips
from sage_grpo.config import ConfigError, RecipeConfig
from sage_grpo.core.protocols import Prompt
from sage_grpo.data.prompts import open_prompts
from sage_grpo.rewards.errors import MissingWeights, RewardError
from sage_grpo.rewards.frames import Unscorable
from sage_grpo.rewards.objects import (
    COLOURS,
    PLACES,
    Line,
    ObjectsReward,
    Thing,
    distinct,
    judge,
    make_tiny_checkpoint,
    places,
    requirements,
)
from sage_grpo.training.build import build_rewards

pytestmark = pytest.mark.slow


def at(x, y, width=10.0, height=10.0):
    """A box by its centre."""
    return (x - width / 2, y - height / 2, x + width / 2, y + height / 2)


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

ROWS = [
    {"tag": "counting", "include": [{"class": "dog", "count": 2}], "exclude": [{"class": "dog", "count": 3}]},
    {"tag": "colors", "include": [{"class": "wine glass", "count": 1, "color": "red"}]},
    {
        "tag": "position",
        "include": [{"class": "cat", "count": 1}, {"class": "dog", "count": 1, "position": ["left of", 0]}],
    },
    {"tag": "none", "include": None},
]
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


# The network

NAMES = ["bus", "pizza", "sign"]
TEXTS = [f"a photo of a {name}" for name in NAMES]
LONG = "a photo of a thing whose name is longer than what the network reads"
WIDE, TALL = clips.pan(frames=1)[0], clips.pan(frames=1)[0, :, 40:100].contiguous()  # 128×192 and 128×60


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("owlv2")
    make_tiny_checkpoint(path)
    return str(path)


@pytest.fixture(scope="module")
def reward(folder):
    return ObjectsReward(folder, threshold=0.5, strict=True)


def detected(folder, picture, texts, threshold):
    """By transformers' own post-processing, in pixels, of a PIL picture."""
    model = hf.Owlv2ForObjectDetection.from_pretrained(folder).eval()
    tokenizer = hf.CLIPTokenizer.from_pretrained(folder)
    processor = hf.Owlv2ImageProcessorPil.from_pretrained(folder)
    inputs = tokenizer(texts, truncation=True, padding=True, return_tensors="pt")
    inputs |= processor(Image.fromarray(picture.numpy()), return_tensors="pt")
    with torch.no_grad():
        outputs = model(**inputs)
    return processor.post_process_object_detection(outputs, threshold, [picture.shape[:2]])[0]


@pytest.mark.parametrize("picture", [WIDE, TALL], ids=["wide", "tall"])
@pytest.mark.parametrize("threshold", [0.0, 0.5])
def test_boxes_are_those_of_transformers(folder, reward, picture, threshold):
    expected = detected(folder, picture, TEXTS, threshold)
    with torch.no_grad():
        logits, boxes = reward.look(picture, TEXTS)
    sure, labels = logits.sigmoid().max(1)
    kept = sure > threshold
    assert len(expected["scores"]) == kept.sum()
    assert threshold == 0 or 0 < kept.sum() < len(kept)
    assert set(labels[kept].tolist()) == {0, 1, 2}  # else any label would do
    torch.testing.assert_close(sure[kept], expected["scores"], atol=1e-6, rtol=0)
    torch.testing.assert_close(boxes[kept] * max(picture.shape[:2]), expected["boxes"], atol=1e-4, rtol=1e-6)
    assert torch.equal(labels[kept], expected["labels"])


@pytest.mark.parametrize("picture", [WIDE, TALL], ids=["wide", "tall"])
def test_things_are_those_boxes_each_once(folder, reward, picture):
    with torch.no_grad():
        found = reward.find(picture, [Line(name) for name in NAMES], [])
    expected = detected(folder, picture, TEXTS, 0.5)
    for number, name in enumerate(NAMES):
        own = expected["labels"] == number
        order = expected["scores"][own].argsort(descending=True)
        boxes = expected["boxes"][own][order]
        boxes = boxes[distinct(boxes)] / max(picture.shape[:2])
        assert len(found[name]) == len(boxes)
        for thing, box in zip(found[name], boxes.tolist(), strict=True):
            assert thing.box == pytest.approx(box, abs=1e-6)
    assert all(found.values())


def test_texts_come_in_any_order_and_their_end_beyond_the_limit_is_cut(reward):
    texts = [*TEXTS, LONG]
    with torch.no_grad():
        straight, boxes = reward.look(WIDE, texts)
        turned, same = reward.look(WIDE, texts[::-1])
        alone, more = reward.look(WIDE, TEXTS[:1])[0], reward.look(WIDE, [*TEXTS, LONG + " and more"])[0]
    torch.testing.assert_close(turned.flip(1), straight, atol=1e-5, rtol=0)
    torch.testing.assert_close(alone, straight[:, :1], atol=1e-5, rtol=0)
    torch.testing.assert_close(same, boxes, atol=1e-6, rtol=0)
    assert more.equal(straight)


PROMPTS = [Prompt(f"a photo {i}", row) for i, row in enumerate(ROWS[:3])]
VIDEOS = torch.stack([clips.pan(x=x, frames=5) for x in (60.0, 150.0, 250.0)])


def test_a_video_scores_the_mean_of_its_frames_and_a_picture_itself(reward):
    frames = [reward.score(VIDEOS[:, [i]], PROMPTS) for i in (0, 1, 3, 4)]
    whole = reward.score(VIDEOS, PROMPTS)
    assert whole.valid.all()
    torch.testing.assert_close(whole.values, torch.stack([f.values for f in frames]).mean(0))
    assert len({tuple(f.values.flatten().tolist()) for f in frames}) > 1  # else any frame would do
    assert reward.score(VIDEOS, PROMPTS).values.equal(whole.values)
    alone = [reward.score(VIDEOS[[i]], PROMPTS[i : i + 1]).values for i in range(3)]
    assert torch.cat(alone).equal(whole.values)


class Planted(ObjectsReward):
    """Finds what is planted: a patch for each, with its logit of each text and its box; it notes what it is asked."""

    def __init__(self, *patches):
        self.patches, self.threshold = patches, 0.5

    def look(self, picture, texts):
        self.texts = texts
        logits = [
            [dict(seen).get(text.removeprefix("a photo of a "), -9.0) for text in texts] for seen, _ in self.patches
        ]
        return torch.tensor(logits), torch.tensor([box for _, box in self.patches])


def test_names_and_colours_are_asked_for_in_one_pass():
    patches = [
        ({"car": 1.0, "red car": -3.0, "blue car": -2.0, "blue dog": 5.0}, at(0, 0)),
        ({"car": 2.0, "teal car": 3.0, "black car": 2.5}, at(50, 0)),
        ({"car": 1.5, "teal car": 3.0}, at(51, 0)),  # the same again
        ({"car": 1.0, "dog": 3.0}, at(0, 0)),
        ({"dog": -0.1}, at(90, 0)),  # not sure enough
        ({"cat": 0.1}, at(20, 0)),
    ]
    reward = Planted(*patches)
    found = reward.find(WIDE, [Line("car", 1, "teal"), DOG], [Line("dog", 2), Line("cat")])
    assert found == {
        "car": [Thing(at(50, 0), "teal"), Thing(at(0, 0), "blue")],
        "dog": [Thing(at(0, 0))],
        "cat": [Thing(at(20, 0))],
    }
    colours = [f"a photo of a {colour} car" for colour in (*COLOURS, "teal")]
    assert reward.texts == ["a photo of a car", "a photo of a dog", "a photo of a cat", *colours]


def test_each_thing_has_its_own_colours():
    patches = [
        ({"car": 1.0, "red car": 2.0, "blue dog": 3.0}, at(0, 0)),
        ({"dog": 1.0, "red car": 4.0, "blue dog": 3.0}, at(50, 0)),
    ]
    found = Planted(*patches).find(WIDE, [Line("car", 1, "red"), Line("dog", 1, "blue")], [])
    assert found == {"car": [Thing(at(0, 0), "red")], "dog": [Thing(at(50, 0), "blue")]}


def test_threshold_decides_what_counts():
    reward = Planted(({"dog": 1.0}, at(0, 0)), ({"dog": 2.0}, at(30, 0)), ({"dog": 3.0}, at(60, 0)))
    for reward.threshold, number in ((0.5, 3), (0.8, 2), (0.9, 1), (0.96, 0)):
        assert len(reward.find(WIDE, [DOG], [])["dog"]) == number


def test_prompts_that_require_nothing_are_masked(reward):
    scores = reward.score(VIDEOS, [PROMPTS[0], Prompt("a dog"), Prompt("a dog", {"include": []})])
    assert scores.valid.tolist() == [[True, True], [False, False], [False, False]]
    assert "no column 'include'" in reward.reasons[1]


def test_gradients_are_off(reward):
    assert not any(p.requires_grad for p in reward.model.parameters())


def test_pickled_weights_are_refused(folder, tmp_path):
    model = hf.Owlv2ForObjectDetection.from_pretrained(folder)
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="is not an OWLv2 checkpoint with safetensors"):
        ObjectsReward(str(tmp_path))


def test_weights_that_are_not_here_are_told_from_wrong_ones():
    with pytest.raises(MissingWeights, match="nobody/nothing is not an OWLv2 checkpoint"):
        ObjectsReward("nobody/nothing")


def test_half_a_checkpoint_is_refused(folder, tmp_path):
    """Transformers would fill what is missing with random numbers and only warn."""
    make_tiny_checkpoint(tmp_path)
    hf.Owlv2ForObjectDetection.from_pretrained(folder).owlv2.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"is not a whole OWLv2: it has no box_head"):
        ObjectsReward(str(tmp_path))


def test_in_recipes(folder):
    """One score is trained on, unless the verdict is asked for as well."""
    options = {"path": folder, "frames": 1}
    reward, weights = build_rewards(RecipeConfig(rewards=[{"type": "objects", "options": options}]))
    assert (list(reward.names), weights) == (["objects"], (1,))
    assert reward.score(VIDEOS, PROMPTS).valid.all()
    entry = {"type": "objects", "options": options | {"strict": True}, "weights": {"objects_all": 0}}
    reward, weights = build_rewards(RecipeConfig(rewards=[entry]))
    assert (list(reward.names), weights) == (["objects", "objects_all"], (1, 0))


@pytest.mark.parametrize("options", [{"frames": 0}, {"threshold": 1.0}, {"threshold": -0.1}])
def test_wrong_options_are_told(options):
    with pytest.raises(ConfigError, match="use at least one frame, and 0 up to below 1"):
        ObjectsReward("nowhere", **options)
