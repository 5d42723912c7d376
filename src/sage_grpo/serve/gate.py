"""The gate of a fleet: an HTTP application that checks token, size and duration of requests to the scorers.

Bytes that are not a valid request never reach a scorer.
"""

import asyncio
import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from sage_grpo.core.scores import Scores
from sage_grpo.rewards.function import in_any
from sage_grpo.rewards.remote.wire import Limits, WireError, pack_answer, unpack_answer, unpack_request

Ask = Callable[[bytes, int], Awaitable[bytes]]  # a scorer: request and its number of videos → answer

DIGITS = 6  # of the number of frames of a video
LooksAt = Callable[[int], Awaitable[Sequence[int] | None]]  # frames of a video → numbers of those it needs


class Busy(RuntimeError):
    """Raised when no scorer can answer now; a later try may succeed."""


class Refused(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def fingerprint(token: str) -> str:
    """Return the SHA-256 hash of a token. A gate knows only this hash, not the token."""
    return hashlib.sha256(token.encode()).hexdigest()


async def all_frames(frames: int) -> None:
    return None


@dataclass(frozen=True)
class ScorerEndpoint:
    """A scorer as the gate sees it: the names of its scores, what it needs, and functions that call it."""

    names: Sequence[str]
    groupwise: bool
    ask: Ask
    frame_indices: LooksAt = all_frames
    uses_audio: bool = False


class Gate:
    """The HTTP application in front of a fleet's scorers.

    Args:
        token: Fingerprint of the token that requests must carry.
        limits: Limits of a request, such as its megabytes.
        seconds: Seconds after which a request is given up.
        find: Returns the scorers by name. It is called at the first request, when the scorers are up.
    """

    def __init__(
        self, token: str, limits: Limits, seconds: float, find: Callable[[], Awaitable[Mapping[str, ScorerEndpoint]]]
    ) -> None:
        self.token, self.limits, self.seconds, self._find = token, limits, seconds, find
        self._endpoints: Mapping[str, ScorerEndpoint] = {}
        routes = [
            Route("/about", self.about),
            Route("/score", self.score, methods=["POST"]),
            Route("/health", self.health),
        ]
        self.app = Starlette(routes=routes, exception_handlers={Refused: _refuse})

    async def endpoints(self) -> Mapping[str, ScorerEndpoint]:
        if not self._endpoints:
            try:
                self._endpoints = await self._find()
            except Busy as error:
                raise Refused(503, str(error)) from error
        return self._endpoints

    def check_token(self, request: Request) -> None:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(fingerprint(token), self.token):  # takes as long for a near miss as for a far one
            raise Refused(401, "the token is wrong or missing: Authorization: Bearer …")

    async def health(self, request: Request) -> Response:
        return PlainTextResponse("ok")

    async def about(self, request: Request) -> Response:
        self.check_token(request)
        endpoints = await self.endpoints()
        names = [name for endpoint in endpoints.values() for name in endpoint.names]
        groupwise = any(endpoint.groupwise for endpoint in endpoints.values())
        scorers = {name: list(endpoint.names) for name, endpoint in endpoints.items()}
        uses_audio = any(endpoint.uses_audio for endpoint in endpoints.values())
        told = {"names": names, "groupwise": groupwise, "uses_audio": uses_audio, "scorers": scorers}
        frames = request.query_params.get("frames", "")
        if re.fullmatch(rf"[1-9][0-9]{{0,{DIGITS - 2}}}", frames):
            try:
                told["frames"] = in_any([await endpoint.frame_indices(int(frames)) for endpoint in endpoints.values()])
            except Busy as error:
                raise Refused(503, str(error)) from error
        return JSONResponse(told)

    async def score(self, request: Request) -> Response:
        self.check_token(request)
        body = await self.read(request)
        try:
            videos, _, ids = await asyncio.to_thread(unpack_request, body, self.limits)
        except WireError as error:
            raise Refused(400, str(error)) from error
        endpoints = list((await self.endpoints()).values())
        try:
            answers = await asyncio.wait_for(
                asyncio.gather(*(endpoint.ask(body, len(videos)) for endpoint in endpoints)), self.seconds
            )
            pairs = zip(answers, endpoints, strict=True)
            parts = [unpack_answer(answer, endpoint.names, ids) for answer, endpoint in pairs]
        except TimeoutError as error:
            raise Refused(504, f"not scored within {self.seconds:.0f} s") from error
        except Busy as error:
            raise Refused(503, str(error)) from error
        except Exception as error:  # of a scorer: the trainer masks what has no score
            raise Refused(500, f"{type(error).__name__}: {error}"[:300]) from error
        scores = Scores.columns(parts)
        names = [name for endpoint in endpoints for name in endpoint.names]
        return Response(pack_answer(scores, names, ids), media_type="application/octet-stream")

    async def read(self, request: Request) -> bytes:
        """Return the body of a request. Refuse a body that is larger than allowed, whatever size its header gives."""
        most = int(self.limits.megabytes * 1e6)
        length = request.headers.get("content-length", "0")
        if not length.isdigit() or int(length) > most:
            raise Refused(413, f"{length} bytes are more than the {most} that are accepted; send fewer videos at once")
        parts, size = [], 0
        try:
            async for part in request.stream():
                parts.append(part)
                size += len(part)
                if size > most:
                    raise Refused(413, f"more than the {most} bytes that are accepted; send fewer videos at once")
        except ClientDisconnect as error:
            raise Refused(400, "the request broke off") from error
        return b"".join(parts)


async def _refuse(request: Request, error: Exception) -> Response:
    return PlainTextResponse(str(error), error.status if isinstance(error, Refused) else 500)
