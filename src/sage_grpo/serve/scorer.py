"""One scorer of a fleet, which turns requests as bytes into answers as bytes. It knows nothing of Ray or HTTP."""

import logging
import time
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch

from sage_grpo.core.protocols import Prompt, Videos
from sage_grpo.core.reward import Reward
from sage_grpo.core.scores import Scores
from sage_grpo.rewards.remote.wire import Limits, pack_answer, unpack_request

log = logging.getLogger(__name__)
SICK = 5  # calls in a row that failed


class WrongScores(RuntimeError):
    """Raised when a scorer does not return one row per video and one column per name."""


def _shape(videos: Videos) -> tuple[Any, ...]:
    sound = None if videos.sound is None else tuple(videos.sound.shape[1:])
    return len(videos), str((tuple(videos.frames.shape[1:]), sound, videos.frame_rate, videos.sample_rate))


class Scorer:
    """A scorer that scores several requests in one call. If one request fails, only this request gets the error."""

    def __init__(self, reward: Reward, batch: int, seconds: float, limits: Limits | None = None) -> None:
        self.reward, self.batch, self.seconds, self.limits = reward, batch, seconds, limits or Limits()
        self.groupwise, self.uses_audio = reward.groupwise, reward.uses_audio
        self.names = tuple(reward.names)
        self._failures = 0  # in a row
        self._since: float | None = None  # when the call under way began

    def frame_indices(self, frames: int) -> Sequence[int] | None:
        """Return the indices of the frames that the scorer needs of a video with `frames` frames, or None for all.

        It is also None if the scorer raises an error here: the same error then shows when it scores.
        """
        try:
            return self.reward.frame_indices(frames)
        except Exception:
            return None

    def answer(self, requests: Sequence[bytes]) -> list[bytes | Exception]:
        """Score requests, and return one answer per request in the same order: bytes, or an exception if it failed."""
        self._since = time.monotonic()
        try:
            read = [unpack_request(request, self.limits) for request in requests]
            scores: dict[int, Scores | Exception] = {}
            for together in self._calls([_shape(videos) for videos, _, _ in read]):
                scores |= self._score([(i, *read[i][:2]) for i in together])
        finally:
            self._since = None
        answers = [scores[i] for i in range(len(read))]
        failed = sum(isinstance(answer, Exception) for answer in answers)
        self._failures = self._failures + failed if failed == len(answers) else 0
        return [
            answer if isinstance(answer, Exception) else pack_answer(answer, self.names, ids)
            for answer, (_, _, ids) in zip(answers, read, strict=True)
        ]

    def _calls(self, shapes: Sequence[tuple[Any, ...]]) -> list[list[int]]:
        """Return groups of requests, by index, to score together: of one size, sound and rate, up to `batch` videos."""
        if self.groupwise:
            return [[i] for i in range(len(shapes))]
        calls: list[list[int]] = []
        order = sorted(range(len(shapes)), key=lambda i: shapes[i][1:])
        for _, same in groupby(order, key=lambda i: shapes[i][1:]):
            room = 0
            for i in same:
                if room < shapes[i][0]:
                    calls.append([])
                    room = self.batch
                calls[-1].append(i)
                room -= shapes[i][0]
        return calls

    def _score(self, requests: Sequence[tuple[int, Videos, list[Prompt]]]) -> dict[int, Scores | Exception]:
        try:
            together = self._checked(
                Videos.joined([videos for _, videos, _ in requests]), [p for _, _, prompts in requests for p in prompts]
            )
        except Exception as error:
            if len(requests) > 1:  # whose fault it is shows when each is alone
                return {i: alone for request in requests for i, alone in self._score([request]).items()}
            log.warning("%s failed: %s: %s", type(self.reward).__name__, type(error).__name__, error)
            return {requests[0][0]: error}
        sizes = [len(videos) for _, videos, _ in requests]
        parts = zip(torch.split(together.values, sizes), torch.split(together.valid, sizes), strict=True)
        return {i: Scores(*part) for (i, _, _), part in zip(requests, parts, strict=True)}

    def _checked(self, videos: Videos, prompts: Sequence[Prompt]) -> Scores:
        scores = self.reward.submit(videos, prompts)()
        shape = (len(videos), len(self.names))
        if tuple(scores.values.shape) != shape:
            raise WrongScores(f"{tuple(scores.values.shape)} values for {shape[0]} videos and {shape[1]} names")
        return scores.on_host()

    def check_health(self) -> None:
        """Raise RuntimeError if the process should be replaced by a new one.

        This is so if the last `SICK` requests failed, or a call has taken longer than `seconds`.
        """
        if self._failures >= SICK:
            raise RuntimeError(f"{self._failures} requests in a row failed")
        since = self._since
        if since is not None and time.monotonic() - since > self.seconds:
            raise RuntimeError(f"a call has taken more than {self.seconds:.0f} s")
