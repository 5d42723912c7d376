"""OWLv2's boxes against transformers' own, on a tiny checkpoint, and what the reward makes of them."""

import pytest

pytest.importorskip("transformers")

import torch
import transformers as hf
from PIL import Image

from rewards import clips
from rewards.geneval import ROWS, at
from sage_grpo.config import ConfigError, RecipeConfig
from sage_grpo.core.protocols import Prompt
from sage_grpo.rewards.errors import MissingWeights
from sage_grpo.rewards.objects import COLOURS, Line, ObjectsReward, Thing, distinct, make_tiny_checkpoint
from sage_grpo.training.build import build_rewards

pytestmark = pytest.mark.slow

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
    found = reward.find(WIDE, [Line("car", 1, "teal"), Line("dog")], [Line("dog", 2), Line("cat")])
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
        assert len(reward.find(WIDE, [Line("dog")], [])["dog"]) == number


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
