"""The format of requests and answers: tensors as safetensors, words as JSON.

Reading them runs no code and opens no path. Every video has an id that its scores must repeat. So scores in another
order are sorted, and an answer with one score too few or of another request is refused.
"""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from sage_grpo.core.protocols import Prompt, Videos
from sage_grpo.core.scores import Scores

VERSION = 1
CHANNELS = 3
FASTEST = 1_000_000  # frames or samples a second


class WireError(ValueError):
    """Raised when bytes from the other side do not follow the format of this module."""


@dataclass(frozen=True)
class Limits:
    """The limits of a message that a reader accepts.

    `megabytes` limits the message, and also its videos with the frames that were not sent. safetensors does not
    compress, so no small message can fill the memory.
    """

    megabytes: float = 1024.0
    words: int = 1 << 22  # bytes of JSON
    videos: int = 1024
    prompt: int = 100_000  # characters


def _pack(tensors: dict[str, Tensor], words: Mapping[str, Any]) -> bytes:
    text = json.dumps({"version": VERSION, **words})
    return save({name: x.detach().cpu().contiguous() for name, x in tensors.items()}, metadata={"words": text})


def _unpack(data: bytes, limits: Limits) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if len(data) > limits.megabytes * 1e6:
        raise WireError(f"{len(data) / 1e6:.0f} MB are more than the {limits.megabytes:.0f} MB that are accepted")
    try:
        (size,) = struct.unpack("<Q", data[:8])
        if size > limits.words:
            raise WireError(f"{size} bytes of description are more than the {limits.words} that are accepted")
        words = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["words"])
        tensors = load(data)
    except (struct.error, SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, WireError):
            raise
        raise WireError(f"these are not the bytes of a message: {type(error).__name__}") from error
    if not isinstance(words, dict) or words.get("version") != VERSION:
        raise WireError(f"the message is of another version than {VERSION}")
    return tensors, words


def _plain(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a prompt that JSON can hold: texts, numbers and lists of them, but no images."""
    plain = {}
    for name, value in columns.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            continue
        plain[name] = value
    return plain


@dataclass(frozen=True)
class Chosen:
    """The frames of each video that are sent: their indices `numbers`, among the `of` frames of the whole video."""

    numbers: Sequence[int]
    of: int

    def spread(self, frames: Tensor, limits: Limits) -> Tensor:
        """Return whole videos (B, `of`, H, W, 3) from the frames (B, sent frames, H, W, 3).

        Frames that were not sent are black.

        Raises:
            WireError: The frames do not fit `numbers`, or the whole videos exceed the limits.
        """
        count, sent, *size = frames.shape
        whole = sorted(set(self.numbers)) == list(self.numbers) and len(self.numbers) == sent
        if not whole or not all(0 <= number < self.of for number in self.numbers):
            raise WireError(f"{sent} frames came, which cannot be the {list(self.numbers)[:9]} of {self.of}")
        if count * self.of * math.prod(size) > limits.megabytes * 1e6:
            raise WireError(f"videos of {self.of} frames are more than the {limits.megabytes:.0f} MB that are accepted")
        videos = frames.new_zeros(count, self.of, *size)
        videos[:, list(self.numbers)] = frames
        return videos

    @classmethod
    def read(cls, words: Any) -> Self:
        numbers, of = (words.get("numbers"), words.get("of")) if isinstance(words, dict) else (None, None)
        if not isinstance(numbers, list) or not isinstance(of, int) or not all(type(n) is int for n in numbers):
            raise WireError("`frames` must tell their numbers, and of how many they are")
        return cls(numbers, of)


def pack_request(videos: Videos, prompts: Sequence[Prompt], ids: Sequence[str], chosen: Chosen | None = None) -> bytes:
    """Return the bytes of a request to score videos.

    Args:
        ids: An id for each video, which its scores must repeat.
        chosen: Which frames of the whole videos `videos` has; None if it has all of them.
    """
    entries = [{"text": prompt.text, "columns": _plain(prompt.columns)} for prompt in prompts]
    words: dict[str, Any] = {"ids": list(ids), "prompts": entries}
    words |= {"frames": {"numbers": list(chosen.numbers), "of": chosen.of}} if chosen else {}
    rates = {"frame_rate": videos.frame_rate, "sample_rate": videos.sample_rate}
    words |= {name: rate for name, rate in rates.items() if rate is not None}
    sound = {} if videos.sound is None else {"sound": videos.sound.float()}
    return _pack({"videos": videos.frames, **sound}, words)


def unpack_request(data: bytes, limits: Limits | None = None) -> tuple[Videos, list[Prompt], list[str]]:
    limits = limits or Limits()
    tensors, words = _unpack(data, limits)
    videos, ids, entries = tensors.get("videos"), words.get("ids"), words.get("prompts")
    if videos is None or videos.dtype != torch.uint8 or videos.ndim != 5 or videos.shape[-1] != CHANNELS:
        raise WireError("`videos` must be uint8 frames (videos, frames, rows, columns, 3)")
    if not isinstance(ids, list) or not isinstance(entries, list) or not len(videos) == len(ids) == len(entries):
        raise WireError("videos, ids and prompts must be of one number")
    if len(videos) > limits.videos:
        raise WireError(f"{len(videos)} videos are more than the {limits.videos} that are accepted")
    if not all(isinstance(name, str) for name in ids) or len(set(ids)) != len(ids):
        raise WireError("ids must be texts, each once")
    prompts = []
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("text"), str):
            raise WireError("a prompt must have a text")
        if len(entry["text"]) > limits.prompt:
            raise WireError(f"a prompt of {len(entry['text'])} characters is longer than {limits.prompt}")
        columns = entry.get("columns", {})
        prompts.append(Prompt(entry["text"], columns if isinstance(columns, dict) else {}))
    if "frames" in words:
        videos = Chosen.read(words["frames"]).spread(videos, limits)
    sound = tensors.get("sound")
    if sound is not None and (sound.dtype != torch.float32 or sound.ndim != 3 or len(sound) != len(videos)):
        raise WireError("`sound` must be float32 (videos, channels, samples)")
    return Videos(videos, _rate(words, "frame_rate"), sound, _rate(words, "sample_rate", int)), prompts, ids


def _rate(words: Mapping[str, Any], name: str, kind: Any = float) -> Any:
    rate = words.get(name)
    if rate is None:
        return None
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < FASTEST:
        raise WireError(f"`{name}` must be a number per second, from 0 to {FASTEST}")
    return kind(rate)


def _texts(words: Any) -> list[str] | None:
    """Return `words` if it is a list of texts, else None. It can be anything, because it was received as JSON."""
    return words if isinstance(words, list) and all(isinstance(word, str) for word in words) else None


def pack_answer(scores: Scores, names: Sequence[str], ids: Sequence[str]) -> bytes:
    return _pack(
        {"values": scores.values.double(), "valid": scores.valid.bool()}, {"names": list(names), "ids": list(ids)}
    )


def unpack_answer(data: bytes, names: Sequence[str], ids: Sequence[str], limits: Limits | None = None) -> Scores:
    """Return the scores in an answer, with rows in the order of `ids` and columns in the order of `names`.

    A score that is not finite is not valid.

    Raises:
        WireError: The answer is malformed, or is about other videos or scores.
    """
    tensors, words = _unpack(data, limits or Limits(megabytes=64))
    values, valid = tensors.get("values"), tensors.get("valid")
    if values is None or valid is None or not values.is_floating_point() or valid.dtype != torch.bool:
        raise WireError("`values` must be numbers and `valid` must say which of them count")
    told_names, told_ids = _texts(words.get("names")), _texts(words.get("ids"))
    if told_names is None or sorted(told_names) != sorted(names):
        raise WireError(f"scores named {str(words.get('names'))[:200]} came back for {list(names)}")
    if told_ids is None or sorted(told_ids) != sorted(ids):
        raise WireError("scores of other videos came back")
    if values.shape != (len(ids), len(names)) or valid.shape != values.shape:
        raise WireError(f"{tuple(values.shape)} values came back for {len(ids)} videos and {len(names)} scores")
    rows, columns = [told_ids.index(name) for name in ids], [told_names.index(name) for name in names]
    values, valid = values.double()[rows][:, columns], valid[rows][:, columns]
    return Scores(values, valid)
