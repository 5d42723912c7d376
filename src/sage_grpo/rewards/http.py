"""A scorer behind an HTTP address: your own server, in any language, or a fleet.

POST the bytes of `rewards/wire.py` to `<url>/score`, with a bearer token if there is one; GET `<url>/about` says the
names of the scores. What a server does wrong becomes a mask, never a number.
"""

import json
import logging
import os
import random
import time
import uuid
from collections.abc import Sequence
from typing import Any

import torch
import urllib3
from torch import Tensor

from sage_grpo.core.protocols import Prompt, Scores
from sage_grpo.rewards.errors import RewardError
from sage_grpo.rewards.wire import WireError, pack_request, unpack_answer

log = logging.getLogger(__name__)

REFUSED = (400, 401, 403, 404, 405, 413, 422)  # asking again would not help
BYTES = {"Content-Type": "application/octet-stream"}
ANSWER = 64_000_000  # bytes that are read of one


class HttpReward:
    """`names` may be left out if the server tells them. Tokens come from the environment, never from a recipe."""

    def __init__(
        self,
        url: str,
        names: Sequence[str] | None = None,
        *,
        token_variable: str = "SAGE_GRPO_TOKEN",
        timeout: float = 60.0,
        deadline: float = 300.0,
        retries: int = 4,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise RewardError(f"url={url!r} must begin with http:// or https://")
        self.url, self.deadline, self.retries = url.rstrip("/"), deadline, retries
        token = os.environ.get(token_variable)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._pool = urllib3.PoolManager(
            headers=headers, timeout=urllib3.Timeout(connect=min(timeout, 10.0), read=timeout), retries=False, maxsize=8
        )
        self.names = tuple(names) if names else self._ask_names()

    def _ask_names(self) -> tuple[str, ...]:
        try:
            answer = self._pool.request("GET", f"{self.url}/about")
            names = json.loads(answer.data)["names"] if answer.status == 200 else None
        except (urllib3.exceptions.HTTPError, ValueError, KeyError, TypeError) as error:
            raise RewardError(
                f"{self.url}/about does not answer ({type(error).__name__}); is the server up?"
            ) from error
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise RewardError(f"{self.url}/about answered {answer.status} without names; give `names` in the options")
        return tuple(names)

    def score(self, videos: Tensor, prompts: Sequence[Prompt]) -> Scores:
        ids = [uuid.uuid4().hex for _ in videos]
        body, end, problem = pack_request(videos, prompts, ids), time.monotonic() + self.deadline, ""
        for attempt in range(self.retries + 1):
            try:
                return unpack_answer(self._post(body), self.names, ids)
            except (urllib3.exceptions.HTTPError, WireError, OSError) as error:
                problem = f"{type(error).__name__}: {error}"
            pause = random.uniform(0.5, 1.5) * min(0.1 * 2**attempt, 10.0)
            if attempt == self.retries or time.monotonic() + pause > end:
                break
            time.sleep(pause)
        log.warning("%s gave no scores for %d videos, which are masked: %s", self.url, len(videos), problem[:300])
        shape = (len(videos), len(self.names))
        return Scores(torch.full(shape, torch.nan, dtype=torch.float64), torch.zeros(shape, dtype=torch.bool))

    def _post(self, body: bytes) -> bytes:
        answer: Any = self._pool.request(
            "POST", f"{self.url}/score", body=body, headers={**self._pool.headers, **BYTES}, preload_content=False
        )
        try:
            data: bytes = answer.read(ANSWER + 1)
        finally:
            answer.release_conn()
        if answer.status in REFUSED:
            said = data[:200].decode(errors="replace")
            raise RewardError(f"{self.url} refused with {answer.status}: {said}; look at the token, address and sizes")
        if answer.status != 200:
            raise WireError(f"status {answer.status}")
        if len(data) > ANSWER:
            raise WireError(f"more than {ANSWER} bytes came back")
        return data
