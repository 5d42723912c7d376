"""A scorer behind an HTTP address: a fleet of `sage-grpo serve`, or your own server in any language.

Videos are sent to `<url>/score` by POST, in the format of `wire.py`, with a bearer token if there is one. GET
`<url>/about` returns the names of the scores. If the server fails or answers wrongly, the videos of the request are
masked.
"""

import json
import logging
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import urllib3
from torch import Tensor

from sage_grpo.core.protocols import Prompt, Videos
from sage_grpo.core.reward import Reward
from sage_grpo.core.scores import Scores
from sage_grpo.registry import reward
from sage_grpo.rewards.errors import RewardError
from sage_grpo.rewards.remote.client import Client, RetryPolicy, Unanswered, in_background
from sage_grpo.rewards.remote.wire import Chosen, pack_request, unpack_answer

log = logging.getLogger(__name__)


@reward("http", extra="http")
class HttpReward(Reward):
    """A reward that a server computes. Videos are scored while the trainer makes the next ones.

    Args:
        names: Names of the scores; None if the server reports them.
        token_variable: Environment variable that holds the bearer token.
        timeout: Seconds for one request.
        deadline: Seconds for a request with all its repetitions.
        retries: Repetitions after invalid answers. A server that is down is tried until the deadline.
        hedge: Send a second request after so many times the usual time of an answer; 0 for never.
        connections: Requests that may be open together.
        videos_per_request: Most videos in a request, unless `groupwise`.
        megabytes_per_request: Most megabytes of frames in a request of several videos, as if all frames were sent.
        groupwise: Whether the server compares the videos of a batch, so that all are sent in one request.
        uses_audio: Whether to send the sound.
    """

    def __init__(
        self,
        url: str,
        names: Sequence[str] | None = None,
        *,
        token_variable: str = "SAGE_GRPO_TOKEN",
        timeout: float = 60.0,
        deadline: float = 300.0,
        retries: int = 4,
        hedge: float = 3.0,
        connections: int = 8,
        videos_per_request: int = 2,
        megabytes_per_request: float = 256.0,
        groupwise: bool = False,
        uses_audio: bool = False,
    ) -> None:
        if connections < 1 or videos_per_request < 1:
            raise RewardError(
                f"http: connections={connections}, videos_per_request={videos_per_request}: use 1 or more"
            )
        self.client = Client(url, token_variable, RetryPolicy(timeout, deadline, retries, hedge), connections)
        self.videos_per_request, self.bytes_per_request = videos_per_request, megabytes_per_request * 1e6
        self.groupwise, self.uses_audio = groupwise, uses_audio
        self.names: tuple[str, ...] = tuple(names or ())
        self._tells = not names  # whether the server says things of itself
        self._needed: dict[int, list[int] | None] = {}
        if not names:
            self._ask_about()
        self._room = threading.BoundedSemaphore(connections)  # a trainer faster than its scorers waits here

    def _ask_about(self) -> None:
        about = self._about("/about")
        names = about.get("names")
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise RewardError(f"{self.client.url}/about tells no names; give `names` in the options")
        self.names, self.groupwise = tuple(names), bool(about.get("groupwise", self.groupwise))
        older = about.get("hears", self.uses_audio)  # the name that servers of the version before give
        self.uses_audio = bool(about.get("uses_audio", older))

    def _about(self, path: str) -> dict[str, Any]:
        try:
            about = json.loads(self.client.get(path))
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise RewardError(f"{self.client.url}/about does not answer ({error}); is the server up?") from error
        except (ValueError, RecursionError):
            about = None
        return about if isinstance(about, dict) else {}

    def frame_indices(self, frames: int) -> list[int] | None:
        """Return the indices of frames that the server says it needs.

        None if it does not say, so that all frames are sent.
        """
        if self._tells and frames not in self._needed:
            try:
                told: Any = self._about(f"/about?frames={frames}").get("frames")
            except RewardError:  # away for a while: all of them now, and asked again next time
                return None
            sound = isinstance(told, list) and all(type(n) is int and 0 <= n < frames for n in told)
            self._needed[frames] = sorted(set(told)) if sound else None
        return self._needed.get(frames)

    def score(self, videos: Tensor, prompts: Sequence[Prompt]) -> Scores:
        return self.submit(Videos(videos), prompts)()

    def submit(self, videos: Videos, prompts: Sequence[Prompt]) -> Callable[[], Scores]:
        """Send the videos to the server, and return a function that waits for the scores."""
        frames, needed = videos.frames, self.frame_indices(videos.frames.shape[1])
        chosen = Chosen(needed, frames.shape[1]) if needed and len(needed) < frames.shape[1] else None
        sent = replace(videos, frames=frames[:, needed] if chosen else frames)
        sent = sent if self.uses_audio else replace(sent, sound=None)
        # as if all frames travelled: the server makes room for whole videos, and refuses what is too large
        fit = int(self.bytes_per_request // max(videos.frames[:1].nbytes, 1))
        size, futures = len(videos) if self.groupwise else max(min(self.videos_per_request, fit), 1), []
        for i, part in enumerate(sent.split(size)):
            self._room.acquire()
            futures.append(in_background(self._ask, part, prompts[i * size : (i + 1) * size], chosen))

        def ask() -> Scores:
            return Scores.rows([future.result() for future in futures])

        return ask

    def _ask(self, videos: Videos, prompts: Sequence[Prompt], chosen: Chosen | None) -> Scores:
        try:
            ids = [uuid.uuid4().hex for _ in prompts]
            body = pack_request(videos, prompts, ids, chosen)
            return self.client.ask("/score", body, lambda data: unpack_answer(data, self.names, ids))
        except Unanswered as error:
            log.warning(
                "%s gave no scores for %d videos, which are masked: %.300s", self.client.url, len(videos), error
            )
            return Scores.failed(len(videos), len(self.names))
        finally:
            self._room.release()
