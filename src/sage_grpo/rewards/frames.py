"""Helpers of scorers: the choice of frames, and a base class that masks a failed video without affecting the others."""

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from sage_grpo.core.protocols import Prompt
from sage_grpo.core.reward import Reward
from sage_grpo.core.scores import Scores

log = logging.getLogger(__name__)
LONGEST = 10_000  # characters of a prompt


class Unscorable(ValueError):
    """Raised when a video or prompt has nothing to score, although nothing is wrong with the scorer."""


def frame_numbers(total: int, count: int | None = None, fps: float | None = None, video_fps: float = 16) -> list[int]:
    """Return the indices of frames that are spread evenly from the first to the last of `total` frames.

    Args:
        count: How many frames to take; None for all.
        fps: Frames to take per second of the video, in place of `count`.
        video_fps: Frames per second of the video; only used with `fps`.
    """
    frame_count = count if fps is None else round(total / video_fps * fps)
    frame_count = total if frame_count is None else min(max(frame_count, 1), total)
    numbers: list[int] = torch.linspace(0, total - 1, frame_count, dtype=torch.float64).round().long().tolist()
    return numbers


def shrunk(frames: Tensor, side: int) -> Tensor:
    """Return uint8 frames (F, H, W, 3) as floats (F, 3, h, w) from 0 to 255, their shorter side at most `side` pixels.

    Frames are shrunk one by one, because a whole video in floats at its full size would take much memory.
    """
    scale = min(1.0, side / min(frames.shape[1:3]))
    size = [max(1, round(n * scale)) for n in frames.shape[1:3]]
    pictures = (frame.permute(2, 0, 1)[None].float() for frame in frames)
    return torch.cat([F.interpolate(p, size, mode="bilinear", antialias=True, align_corners=False) for p in pictures])


def bounded(text: str) -> str:
    """Return `text`, or raise `Unscorable` if it has more than `LONGEST` characters.

    A text of a megabyte would take so much memory or time that other videos could not be scored.
    """
    if len(text) > LONGEST:
        raise Unscorable(f"its text has {len(text)} characters, more than {LONGEST}")
    return text


class VideoScorer(Reward, ABC):
    """A reward that scores one video at a time; a subclass says how in `score_video`."""

    _has_scored = False
    _told: frozenset[str] = frozenset()

    @abstractmethod
    def score_video(self, frames: Tensor, prompt: Prompt) -> Sequence[float | None]:
        """Return the scores of one video, uint8 frames (F, H, W, 3), one for each entry of `names`.

        A score is None if this video has no such score.
        """

    @classmethod
    @abstractmethod
    def tiny(cls) -> Self:
        """Return a toy version of the scorer that downloads nothing, for the checks in `rewards/contract.py`."""

    def score(self, videos: Tensor, prompts: Sequence[Prompt]) -> Scores:
        if videos.dtype != torch.uint8 or videos.dim() != 5 or videos.shape[-1] != 3 or len(videos) != len(prompts):
            raise ValueError(
                f"{self._name} scores uint8 videos (B, frames, height, width, 3), each with its prompt; "
                f"given {videos.dtype} {tuple(videos.shape)} and {len(prompts)} prompts"
            )

        def alone(i: int) -> Sequence[float | None]:
            if videos[i].numel() == 0:
                raise Unscorable("it has no pixels")
            return self.score_video(videos[i], prompts[i])

        return self.one_by_one(alone, prompts)

    def one_by_one(self, score: Callable[[int], Sequence[float | None]], prompts: Sequence[Prompt]) -> Scores:
        """Return the scores of all videos. A video that fails is masked.

        If all videos fail with the same type of error and this scorer has never scored one, the scorer is broken, and
        the error is raised. After a first success the videos may be broken instead, and all are masked.
        `policy.max_failed_rewards` then stops a run in which too many are masked.

        Args:
            score: Function from a video's index to its scores, one number per name.
            prompts: The prompt of each video.
        """
        values = torch.full((len(prompts), len(self.names)), math.nan, dtype=torch.float64)
        failures: list[Exception] = []
        self.reasons = {}
        for i, prompt in enumerate(prompts):
            try:
                values[i] = self._numbers(score(i), prompt)
                self._has_scored = self._has_scored or bool(values[i].isfinite().any())
            except Unscorable as reason:
                self._tell(i, prompt, reason)
            except Exception as error:
                failures.append(error)
                self._tell(i, prompt, error)
        same = len({type(error) for error in failures}) == 1 and len(failures) == len(prompts)
        if same and not self._has_scored:
            raise failures[0]
        return Scores.of(values)

    def _numbers(self, scores: Sequence[float | None], prompt: Prompt) -> Tensor:
        numbers = [math.nan if x is None else float(x) for x in scores]
        names = zip(self.names, scores, numbers, strict=True)
        if wrong := [name for name, x, number in names if x is not None and not math.isfinite(number)]:
            error = ArithmeticError(f"{', '.join(wrong)} is not finite")
            if len(wrong) == len(numbers):
                raise error
            self._tell(None, prompt, error)
        return torch.tensor(numbers, dtype=torch.float64)

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _tell(self, number: int | None, prompt: Prompt, reason: Exception) -> None:
        """Keep the reason why a video is masked in `reasons`.

        Log each reason only once, because a run has thousands of videos.
        """
        key = f"{type(reason).__name__}: {reason}"
        if number is not None:
            self.reasons = {**self.reasons, number: str(reason) if isinstance(reason, Unscorable) else key}
        if key not in self._told:
            self._told |= {key}
            which = "a video" if number is None else f"video {number} of its batch"
            log.warning(
                "%s does not score %s (%.60r): %s; others like it are masked in silence",
                self._name,
                which,
                prompt.text,
                key,
            )


def groups(prompts: Sequence[Prompt]) -> list[list[int]]:
    """Return the groups of a batch of videos, each as a list of indices.

    A group is the videos made from the same text and, if there is one, the same image.
    """
    by_prompt: dict[tuple[str, str], list[int]] = {}
    for i, prompt in enumerate(prompts):
        by_prompt.setdefault((prompt.text, str(prompt.columns.get("image"))), []).append(i)
    return list(by_prompt.values())
