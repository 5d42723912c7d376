"""Prompts and videos, as models and rewards exchange them, and the sources of prompts and of copies of weights."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

Condition = Mapping[str, Tensor]  # inputs of the network; every tensor has the samples as first axis


@dataclass(frozen=True)
class Prompt:
    """A prompt: its text, and the other columns of its row in the prompt file.

    Examples:
        >>> Prompt("a red circle moving left", {"image": "circle.png"}).columns["image"]
        'circle.png'
    """

    text: str
    """The text that the video is made from."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Values of the other columns by name: `image` for image-to-video, any others for rewards."""


@dataclass(frozen=True)
class Videos:
    """Decoded videos: their frames, the frame rate, and the sound if there is any.

    Examples:
        >>> videos = Videos(torch.zeros(4, 9, 32, 32, 3, dtype=torch.uint8), frame_rate=8)
        >>> [tuple(part.frames.shape) for part in videos.split(3)]
        [(3, 9, 32, 32, 3), (1, 9, 32, 32, 3)]
    """

    frames: Tensor
    """Frames (B, F, H, W, 3), uint8."""
    frame_rate: float | None = None
    """Frames per second; None if the model does not say."""
    sound: Tensor | None = None
    """Sound (B, channels, samples), from -1 to 1; None if the videos have no sound."""
    sample_rate: int | None = None
    """Samples of sound per second; None if the videos have no sound."""

    def __len__(self) -> int:
        return len(self.frames)

    def split(self, size: int) -> list["Videos"]:
        """Split into batches of `size` videos each; the last may be smaller. The batches are views, not copies."""
        frames = torch.split(self.frames, size)
        sounds = torch.split(self.sound, size) if self.sound is not None else [None] * len(frames)
        return [replace(self, frames=f, sound=s) for f, s in zip(frames, sounds, strict=True)]

    @classmethod
    def joined(cls, parts: Sequence["Videos"]) -> "Videos":
        """Concatenate batches of videos that the same model made."""
        if len(parts) == 1:
            return parts[0]
        sounds = [part.sound for part in parts if part.sound is not None]
        return replace(
            parts[0], frames=torch.cat([part.frames for part in parts]), sound=torch.cat(sounds) if sounds else None
        )


class PromptSource(Protocol):
    """A source of prompts, numbered by position. A resumed run continues at the position that it had reached."""

    @property
    def fingerprint(self) -> str | None:
        """Return a digest of all prompts, so that a resumed run can check that they are unchanged; None if unknown."""
        ...

    def __call__(self, start: int, count: int) -> Sequence[Prompt]:
        """Return `count` prompts, from position `start` on. Every position, however large, has a prompt."""
        ...


class WeightsBank(Protocol):
    """Named copies of the trainable weights: in memory, sharded, or as LoRA adapters."""

    def save(self, name: str, decay: float = 0.0) -> None:
        """Save the current weights as copy `name`, or move an existing copy towards them.

        copy ← decay·copy + (1-decay)·weights. A copy that does not exist yet becomes equal to the weights.
        """
        ...

    def __contains__(self, name: str) -> bool:
        """Return whether the bank has a copy called `name`."""
        ...

    def adopt(self, name: str) -> None:
        """Overwrite the model's weights by copy `name`."""
        ...

    def using(self, name: str) -> AbstractContextManager[None]:
        """Replace the model's weights by copy `name` inside the block, and restore them afterwards."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the copies in the form in which a checkpoint stores them."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the copies from what `state_dict` returned."""
        ...
