"""Objects by GenEval's rules: is each thing there, in the right number, with its colour and in its place?

A prompt file lists the requirements of each prompt in the columns `include` and `exclude`, as GenEval's own file does.
OWLv2 finds the things by name. The score is gamed by cut-outs side by side on an empty ground, because beauty and
motion are not seen. Combine it with a score of the scene.
"""

import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Self

import torch
from tokenizers import pre_tokenizers
from torch import Tensor
from transformers import CLIPTokenizer, Owlv2Config, Owlv2ForObjectDetection

from sage_grpo.config import ConfigError
from sage_grpo.core.protocols import Prompt
from sage_grpo.registry import reward
from sage_grpo.rewards.checkpoints import not_loaded
from sage_grpo.rewards.errors import RewardError
from sage_grpo.rewards.frames import Unscorable, VideoScorer, bounded, frame_numbers

try:  # the class that needs no torchvision, by its newer name
    from transformers import Owlv2ImageProcessorPil as ImageProcessor
except ImportError:
    from transformers import Owlv2ImageProcessor as ImageProcessor

COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")  # GenEval's
PLACES = ("left of", "right of", "above", "below")
MARGIN = 0.1  # of the sizes of both boxes, by which their centres must be further apart than they need to be
SAME = 0.5  # shared part of two boxes of a name from which they are one thing: neighbouring patches find it again
NEEDED = '{"class": "dog", "count": 1, "color": "red", "position": ["left of", 0]}, the last two if asked for'
Box = tuple[float, float, float, float]  # left, top, right, bottom; all that is asked of a box is free of its unit


@dataclass(frozen=True)
class Line:
    """One requirement on a picture: at least `count` things of this name if listed under `include`, fewer if under
    `exclude`.

    It can also require a colour, and a place relative to other things.
    """

    name: str
    count: int = 1
    colour: str | None = None
    place: tuple[str, int] | None = None  # such as left of the things of the line with that number

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Self:
        count, place = row.get("count"), row.get("position")
        line = cls(
            bounded(row["class"]).strip(),
            1 if count is None else int(count),
            row.get("color") or None,
            (str(place[0]), int(place[1])) if place else None,
        )
        if not line.name or line.count < 1 or (line.place and line.place[0] not in PLACES):
            raise ValueError("a name, a count and a place are needed")
        return line


@dataclass(frozen=True)
class Thing:
    """One thing that was found in a picture: its box, and its colour, which is None unless a requirement needs it."""

    box: Box
    colour: str | None = None


def requirements(prompt: Prompt) -> tuple[list[Line], list[Line]]:
    """Return what must be in the video and what must not, read from the prompt's columns `include` and `exclude`.

    The columns hold lists, or JSON texts where the format of the prompt file has no lists.

    Raises:
        Unscorable: The prompt requires nothing.
        RewardError: A requirement is malformed.
    """
    lines: dict[str, list[Line]] = {}
    for column in ("include", "exclude"):
        value = prompt.columns.get(column) or []
        try:
            rows = json.loads(bounded(value)) if isinstance(value, str) else value
            lines[column] = [Line.read(row) for row in rows]
        except Unscorable:
            raise
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise RewardError(f"objects: {column} is {value!r:.200}; needs a list of such as {NEEDED}") from error
    include = lines["include"]
    if not include:
        raise Unscorable("its prompt has no column 'include' that says what must be there")
    for number, line in enumerate(include):
        if line.place and line.place[1] not in set(range(len(include))) - {number}:
            raise RewardError(
                f"objects: {line.name!r} is to be {line.place[0]} number {line.place[1]}, which is no other line of "
                f"its {len(include)}; they count from 0"
            )
    return include, lines["exclude"]


def places(box: Box, other: Box) -> set[str]:
    """Return the sides of `other` on which a box stands: none, one or two of left of, right of, above and below.

    The box stands on a side if its centre is further off in that direction than half the distance of the centres. From
    how far it is off, a tenth of the sizes of both boxes is first subtracted. So boxes whose centres nearly meet stand
    on no side.
    """
    dx, dy = ((box[i] + box[i + 2] - other[i] - other[i + 2]) / 2 for i in (0, 1))
    width, height = (MARGIN * (box[i + 2] - box[i] + other[i + 2] - other[i]) for i in (0, 1))
    sides = zip(PLACES, (-dx - width, dx - width, -dy - height, dy - height), strict=True)
    return {place for place, distance in sides if distance > math.hypot(dx, dy) / 2}


def judge(
    include: Sequence[Line], exclude: Sequence[Line], found: Mapping[str, Sequence[Thing]]
) -> tuple[float, float]:
    """Return the share of requirements that a picture meets, and GenEval's verdict: 1 if it meets all, else 0.

    Args:
        found: The things in the picture by name, the most certain first. Of more things than `include` requires, only
            the most certain count. Things that `exclude` forbids lower the share.
    """
    chosen = [found.get(line.name, ())[: line.count] for line in include]
    met = []
    for line, things in zip(include, chosen, strict=True):
        met.append(len(things) / line.count)
        if line.colour:
            met.append(sum(thing.colour == line.colour for thing in things) / line.count)
        if line.place:
            place, number = line.place
            pairs = product(things, chosen[number])
            fitting = sum(place in places(thing.box, other.box) for thing, other in pairs)
            met.append(fitting / (line.count * include[number].count))
    # A factor: as a further requirement, an empty picture would meet it.
    spared = math.prod(min(1.0, line.count / (len(found.get(line.name, ())) + 1)) for line in exclude)
    score = spared * sum(met) / len(met)
    return score, float(score == 1)


def distinct(boxes: Tensor) -> list[int]:
    """Return the indices of those boxes (N, 4) that show different things.

    Of boxes that overlap much, the first is kept. Boxes must be in order of certainty, the most certain first.
    """
    kept, rest = [], torch.arange(len(boxes))
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    while len(rest):
        first, rest = int(rest[0]), rest[1:]
        low = torch.maximum(boxes[rest, :2], boxes[first, :2])
        high = torch.minimum(boxes[rest, 2:], boxes[first, 2:])
        shared = (high - low).clamp(min=0).prod(1)
        rest = rest[shared < SAME * (areas[rest] + areas[first] - shared)]
        kept.append(first)
    return kept


@reward("objects", extra="models")
class ObjectsReward(VideoScorer):
    """Share of a prompt's requirements that OWLv2 finds met, from 0 to 1, averaged over a few frames."""

    names: tuple[str, ...] = ("objects",)
    device_bytes = 620_000_000  # of its weights: what a plan counts
    follows_videos_device = True
    default_path = "google/owlv2-base-patch16-ensemble"

    def __init__(
        self,
        path: str | None = None,
        *,
        revision: str | None = None,
        frames: int = 4,
        threshold: float = 0.2,
        strict: bool = False,
        device: str | None = None,
    ) -> None:
        """Load OWLv2.

        Args:
            path: Folder or hub name of the checkpoint.
            revision: Branch or commit on the hub.
            frames: How many frames of a video are scored.
            threshold: Confidence above which a thing counts as found.
            strict: Give GenEval's verdict as a second score, `objects_all`.
            device: Where to score, by default the device of the videos.
        """
        if frames < 1 or not 0 <= threshold < 1:
            raise ConfigError(
                f"objects: frames={frames}, threshold={threshold}: use at least one frame, and 0 up to below 1"
            )
        source, at = path or self.default_path, revision or "main"
        try:
            # Pickled weights would run code of whoever made them.
            self.model, info = self._load(source, revision=at, use_safetensors=True, output_loading_info=True)
            self.tokenizer: Any = CLIPTokenizer.from_pretrained(source, revision=at)
            self.processor: Any = ImageProcessor.from_pretrained(source, revision=at)
        except OSError as error:
            needs = "an OWLv2 checkpoint with safetensors, a tokenizer and an image processor"
            raise not_loaded("objects", source, needs, error) from error
        if missing := sorted(info["missing_keys"]):  # they would be random, and so would the scores
            raise ConfigError(f"objects: {source} is not a whole OWLv2: it has no {missing[0]}")
        self.model.eval().requires_grad_(False)
        self.names = ("objects", "objects_all") if strict else ("objects",)
        self.frames, self.threshold, self.device = frames, threshold, torch.device(device) if device else None
        self.text_tokens: int = self.model.config.text_config.max_position_embeddings

    @staticmethod
    def _load(source: str, **how: Any) -> tuple[Any, Any]:
        return Owlv2ForObjectDetection.from_pretrained(source, **how)  # type: ignore[no-any-return]

    def frame_indices(self, frames: int) -> list[int]:
        return frame_numbers(frames, self.frames)

    @torch.no_grad()
    def score_video(self, frames: Tensor, prompt: Prompt) -> list[float]:
        include, exclude = requirements(prompt)
        self.model.to(self.device or frames.device)
        chosen = frames[self.frame_indices(len(frames))]
        scores = [judge(include, exclude, self.find(picture, include, exclude)) for picture in chosen]
        return torch.tensor(scores, dtype=torch.float64).mean(0).tolist()[: len(self.names)]

    def find(self, picture: Tensor, include: Sequence[Line], exclude: Sequence[Line]) -> dict[str, list[Thing]]:
        """Return the things found in a picture (H, W, 3) by name, the most certain first.

        If a requirement gives a colour to a name, each thing of that name has the colour that was seen.
        """
        names = list(dict.fromkeys(line.name for line in (*include, *exclude)))
        palette = list(dict.fromkeys((*COLOURS, *(line.colour for line in include if line.colour))))
        coloured = list(dict.fromkeys(line.name for line in include if line.colour))
        asked = [*names, *(f"{colour} {name}" for name in coloured for colour in palette)]
        logits, boxes = self.look(picture, [f"a photo of a {text}" for text in asked])
        sure, name_of = logits[:, : len(names)].max(1)  # a box has one name only
        hues = logits[:, len(names) :].reshape(len(logits), len(coloured), len(palette)).argmax(2)
        found = {}
        for i, name in enumerate(names):
            own = ((name_of == i) & (sure.sigmoid() > self.threshold)).nonzero()[:, 0]
            own = own[sure[own].argsort(descending=True, stable=True)]
            own = own[distinct(boxes[own])]
            hue = [palette[h] for h in hues[own, coloured.index(name)]] if name in coloured else [None] * len(own)
            found[name] = [
                Thing((left, top, right, bottom), colour)
                for (left, top, right, bottom), colour in zip(boxes[own].tolist(), hue, strict=True)
            ]
        return found

    def look(self, picture: Tensor, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return OWLv2's logits (patches, texts) for a picture (H, W, 3), and a box for each patch, (patches, 4).

        A box is left, top, right and bottom. OWLv2 sees a square with the picture in its corner. Boxes are in sides of
        that square, so a pixel is as wide as it is high, whatever the picture's shape.
        """
        tokens = self.tokenizer(
            list(texts), padding="max_length", truncation=True, max_length=self.text_tokens, return_tensors="pt"
        )
        pixels = self.processor([picture.cpu().numpy()], return_tensors="pt", input_data_format="channels_last")
        device = self.model.device
        seen = self.model(**tokens.to(device), **pixels.to(device))
        centres, sizes = seen.pred_boxes[0].cpu().split(2, 1)
        return seen.logits[0].cpu(), torch.cat([centres - sizes / 2, centres + sizes / 2], 1)

    @classmethod
    def tiny(cls) -> Self:
        with tempfile.TemporaryDirectory() as folder:
            make_tiny_checkpoint(folder)
            return cls(folder, frames=2, threshold=0.5, strict=True)


def make_tiny_checkpoint(folder: str | Path) -> None:
    """Write a checkpoint of OWLv2's own classes at toy size.

    It has one token per byte of text, two layers, and pictures of 32 pixels a side in 16 patches.
    """
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    # As in the released one: it pads with the first, and ends with the last, where the text is read off.
    words = ["!", *letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {word: i for i, word in enumerate(dict.fromkeys(words))}
    layers = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    start, end = len(vocabulary) - 2, len(vocabulary) - 1
    text = layers | {"vocab_size": end + 1, "max_position_embeddings": 40, "bos_token_id": start, "eos_token_id": end}
    vision = layers | {"image_size": 32, "patch_size": 8}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: Any = Owlv2ForObjectDetection(Owlv2Config(text_config=text, vision_config=vision, projection_dim=32))
    boxes, shift, scale = model.box_head.dense2, model.class_head.logit_shift, model.class_head.logit_scale
    # Boxes near their patches, and a logit of twenty times the cosine: half of the random ones are above 0.5.
    for layer, weight, bias in ((boxes, 0.01, 0.0), (shift, 0.0, 0.0), (scale, 0.0, 19.0)):
        layer.weight.data.mul_(weight)
        layer.bias.data.fill_(bias)
    model.save_pretrained(folder)
    CLIPTokenizer(vocab=vocabulary, merges=[], pad_token="!", model_max_length=40).save_pretrained(folder)
    ImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
