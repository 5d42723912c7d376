"""An HTTP client that repeats requests until a valid answer or the deadline, and spares a server that is down."""

import logging
import os
import random
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import urllib3

from sage_grpo.rewards.errors import RewardError
from sage_grpo.rewards.remote.wire import WireError

log = logging.getLogger(__name__)
T = TypeVar("T")

REFUSED = (400, 401, 403, 404, 405, 413, 422)  # asking again would not help
AWAY = (408, 429, 502, 503, 504)  # nobody was there, or too busy: nothing was answered that could be wrong
BYTES = {"Content-Type": "application/octet-stream"}
ANSWER = 64_000_000  # bytes that are read of one
IN_A_ROW = 5  # failures after which only one request at a time is tried
KNOWN = 10  # answers before their usual time is known
SECOND_REQUESTS = 0.1  # of all: help for stragglers must not double the load of a fleet that is merely busy


class Unanswered(RuntimeError):
    """Raised when there was no valid answer before the deadline, or there were too many invalid ones."""


class Away(OSError):
    """Raised when the server cannot be reached, is silent or is too busy. The request may be tried again later."""


@dataclass(frozen=True)
class RetryPolicy:
    timeout: float = 60.0  # seconds for one request
    deadline: float = 300.0  # seconds in all
    retries: int = 4  # after invalid answers; a server that is away or silent is asked until the deadline
    hedge: float = 3.0  # a second request after so many times the usual time; 0 for never


def in_background(work: Callable[..., T], *arguments: Any) -> "Future[T]":
    """Start `work` in a thread that does not keep the program from ending, and return the future of its result."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


class CircuitBreaker:
    """A gate for requests to a server that may be down.

    It lets all requests through. After `limit` failures in a row it lets one through at a time, until one succeeds.
    """

    def __init__(self, limit: int = IN_A_ROW) -> None:
        self.limit, self.failures, self._alone = limit, 0, threading.Lock()

    @property
    def open(self) -> bool:
        return self.failures >= self.limit

    @contextmanager
    def passage(self, end: float) -> Iterator[None]:
        alone = self.open and self._alone.acquire(timeout=max(end - time.monotonic(), 0.0))
        if alone and not self.open:  # it recovered while this one waited
            self._alone.release()
            alone = False
        try:
            if self.open and not alone:
                raise Away("it stayed away until the deadline")
            yield
            self.failures = 0
        except RewardError:  # an answer, though not a welcome one
            self.failures = 0
            raise
        except Exception:
            self.failures += 1
            raise
        finally:
            if alone:
                self._alone.release()


class Client:
    """A client of the server at one URL.

    The server's token is read from the environment variable `token_variable`, never from a recipe.
    """

    def __init__(self, url: str, token_variable: str, policy: RetryPolicy, connections: int) -> None:
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise RewardError(f"url={url!r} must begin with http:// or https://")
        self.url, self.policy, self.breaker = url.rstrip("/"), policy, CircuitBreaker()
        token = os.environ.get(token_variable)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        limit = urllib3.Timeout(connect=min(policy.timeout, 10.0), read=policy.timeout)
        # twice as many: a second request needs a place next to the first
        self._pool = urllib3.PoolManager(timeout=limit, retries=False, maxsize=2 * connections)
        self._seconds: deque[float] = deque(maxlen=50)
        self.requests = self.second_requests = 0

    def get(self, path: str) -> bytes:
        """Return the body of the answer to a GET request.

        Raises:
            Away: The whole answer did not arrive within `policy.timeout` seconds.
        """
        answer = in_background(self._request, "GET", path, None)
        if not wait({answer}, self.policy.timeout).done:
            raise Away(f"no whole answer within {self.policy.timeout:g} s")
        return answer.result()

    def ask(self, path: str, body: bytes, read: Callable[[bytes], T]) -> T:
        """POST `body` to `path`, and return what `read` makes of the answer's body.

        If `read` raises a `WireError`, the answer is invalid, and the request is sent again.

        Raises:
            Unanswered: There was no valid answer before the deadline, or there were too many invalid ones.
            RewardError: The server refused the request.
        """
        end, wrong, attempt = time.monotonic() + self.policy.deadline, 0, 0
        while True:
            try:
                with self.breaker.passage(end):
                    return self._hedged(path, body, read, end)
            except (urllib3.exceptions.HTTPError, WireError, OSError) as error:
                problem = f"{type(error).__name__}: {error}"
                wrong += not isinstance(error, Away)
            pause = random.uniform(0.5, 1.5) * min(0.1 * 2**attempt, 10.0)
            attempt += 1
            if wrong > self.policy.retries or time.monotonic() + pause > end:
                raise Unanswered(problem)
            time.sleep(pause)

    def _hedged(self, path: str, body: bytes, read: Callable[[bytes], T], end: float) -> T:
        """Send a request, and a second one if the first takes unusually long. Return the first valid answer."""
        pending = {in_background(self._once, path, body, read)}
        if (usual := self._usual()) and not wait(pending, usual * self.policy.hedge).done and self._may_help():
            pending.add(in_background(self._once, path, body, read))
        while True:
            done, pending = wait(pending, max(end - time.monotonic(), 0.0), FIRST_COMPLETED)
            if not done:
                raise Away("no answer until the deadline")
            for future in done:
                if future.exception() is None or not pending:
                    answer: T = future.result()
                    return answer

    def _may_help(self) -> bool:
        allowed = self.second_requests < SECOND_REQUESTS * self.requests
        self.second_requests += allowed
        return allowed

    def _usual(self) -> float | None:
        known = len(self._seconds) >= KNOWN and self.policy.hedge
        return max(statistics.median(self._seconds), 0.05) if known else None

    def _once(self, path: str, body: bytes, read: Callable[[bytes], T]) -> T:
        self.requests += 1
        started = time.monotonic()
        answer = read(self._request("POST", path, body))
        self._seconds.append(time.monotonic() - started)
        return answer

    def _request(self, method: str, path: str, body: bytes | None) -> bytes:
        try:
            answer: Any = self._pool.request(
                method, self.url + path, body=body, headers={**self._headers, **BYTES}, preload_content=False
            )
            try:
                data: bytes = answer.read(ANSWER + 1)
            finally:
                answer.close() if answer.length_remaining else answer.release_conn()
        except (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError) as error:
            raise Away(f"{self.url} cannot be reached: {type(error).__name__}") from error
        except urllib3.exceptions.ReadTimeoutError as error:  # silence is no invalid answer: scorers may start again
            raise Away(f"no answer within {self.policy.timeout:g} s") from error
        except urllib3.exceptions.ProtocolError as error:
            if isinstance(error.args[-1], TimeoutError):  # while the request was sent: nobody takes it
                raise Away("the request was not taken in time") from error
            raise
        if answer.status in REFUSED:
            text = data[:200].decode(errors="replace")
            raise RewardError(f"{self.url} refused with {answer.status}: {text}; look at the token, address and sizes")
        if answer.status in AWAY:
            raise Away(f"status {answer.status}")
        if answer.status != 200:
            raise WireError(f"status {answer.status}")
        if len(data) > ANSWER:
            raise WireError(f"more than {ANSWER} bytes came back")
        return data
