"""The study as a small web application. The server sends positions and sides to raters, never the name of a source.

A video is requested by its pair's position and its side, with the rater's token, so that no URL differs between
sources. The page loads both videos whole before it plays either. So a slow line favours neither, and the server need
not send parts of a file.
"""

import hmac
import json
import re
import socket
import sys
import time
import traceback
from base64 import b64encode
from contextlib import suppress
from hashlib import sha256
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from importlib.resources import files
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sage_grpo.config import ConfigError
from sage_grpo.evaluation.study.guard import GuardedServer, JoinLimit
from sage_grpo.evaluation.study.plan import VIDEOS
from sage_grpo.evaluation.study.store import Conflict, Rater, Store

LARGEST_BODY = 16_384
CHUNK = 65_536
LOCAL = ("127.0.0.1", "localhost", "::1")
DRAIN_SECONDS = 0.5  # that a refused body is waited for
MOST_REVISIONS = 100  # of one answer
SECONDS_A_PAIR = 25  # until a rater's own pace is known


class SubmittedAnswer(BaseModel):
    """An answer in the form in which the raters' page sends it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    choices: dict[str, Literal["left", "same", "right"]]
    revision: int = Field(gt=0, le=MOST_REVISIONS)
    milliseconds: int = Field(ge=0, le=24 * 3600 * 1000)
    watched: Literal[True]  # both videos to their end


class Refused(Exception):
    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


def policy(page: str) -> str:
    """Return a Content-Security-Policy that lets the page's own script and style run, and nothing else."""

    def only(tag: str) -> str:
        match = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.S)
        assert match
        return f"'sha256-{b64encode(sha256(match[1].encode()).digest()).decode()}'"

    return (
        f"default-src 'none'; script-src {only('script')}; style-src {only('style')}; connect-src 'self'; "
        "media-src blob:; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


class Server(GuardedServer):
    def __init__(self, host: str, port: int, folder: Path, store: Store, public: str | None = None) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.folder, self.store, self.joins = folder, store, JoinLimit()
        self.proxied = public is not None
        self.page = files("sage_grpo.evaluation.study").joinpath("page.html").read_bytes()
        self.policy = policy(self.page.decode())
        outside = urlsplit(public).netloc if public else ""
        if public and (not outside or urlsplit(public).scheme not in ("http", "https")):
            raise ConfigError(f"--public-url {public} is no address; write it as https://study.example.org")
        self.local = host in LOCAL and not public
        self.hosts = {*LOCAL, urlsplit(f"//{outside}").hostname or "localhost"} if host in LOCAL else None
        self.base = "" if self.local else f"/{store.plan.access}"
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            raise ConfigError(
                f"cannot listen at {host} port {port} ({error.strerror}); --port 0 picks a free one"
            ) from error
        name = f"[{host}]" if ":" in host else socket.gethostname() if host in ("0.0.0.0", "::") else host
        self.url = f"{public.rstrip('/') if public else f'http://{name}:{self.server_address[1]}'}{self.base}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """Print the traceback of an error, without the rater's address; nothing if the browser has hung up."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            traceback.print_exc()

    def study(self) -> dict[str, Any]:
        plan = self.store.plan
        return {
            "id": self.store.plan_hash[:12],
            "title": plan.title,
            "contact": plan.contact,
            "dimensions": [dimension.model_dump() for dimension in plan.dimensions],
            "pairs": plan.per_rater + len(plan.checks) + (plan.per_rater > 1),
            "seconds": SECONDS_A_PAIR,
            "open": self.store.open,
        }


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    timeout = 30  # seconds that a silent connection may hold a thread

    def version_string(self) -> str:
        return "study"

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: addresses of raters are not written down."""

    def handle_one_request(self) -> None:
        self.server.waiting[self.connection] = time.monotonic()
        super().handle_one_request()

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_PUT(self) -> None:
        self._answer("PUT")

    def _answer(self, method: str) -> None:
        try:
            self._check_length(method)
            self._route(method, self._page_path())
        except Refused as refused:
            self.close_connection = True  # a body may be left unread
            self._json({"error": str(refused)}, refused.status)
            self._drain()
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except OSError as error:
            self.close_connection = True
            self._json({"error": f"the answer could not be saved: {error.strerror}"}, HTTPStatus.SERVICE_UNAVAILABLE)

    def _drain(self) -> None:
        """Read what has arrived of the body of a refused request.

        Closing a connection with unread data can make the client lose the response.
        """
        if self.headers.get("Content-Length", "0") == "0":
            return
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(DRAIN_SECONDS)
            for _ in range(4):
                if not self.connection.recv(CHUNK):
                    break

    def _check_length(self, method: str) -> None:
        """Refuse a request whose length is ambiguous.

        Otherwise the rest of its body would be read as the next request.
        """
        lengths = self.headers.get_all("Content-Length", [])
        if "Transfer-Encoding" in self.headers or len(lengths) > 1:
            raise Refused(HTTPStatus.BAD_REQUEST, "give the length of the body once, and send it whole")
        if method == "GET" and lengths not in ([], ["0"]):
            raise Refused(HTTPStatus.BAD_REQUEST, "a GET has no body")

    def _address(self) -> str:
        """Return the address of the rater: the last in `X-Forwarded-For`, else that of the connection.

        The header counts only if the study has a public URL and the connection is from a private address, as of a
        proxy.
        """
        peer = str(self.client_address[0])
        forwarded = self.headers.get("X-Forwarded-For", "").rpartition(",")[2].strip()
        return forwarded if forwarded and self.server.proxied and ip_address(peer).is_private else peer

    def _page_path(self) -> str:
        """Return the path of the request after the access code.

        Refuse a request with a wrong host or access code.
        """
        host = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        if self.server.hosts is not None and host not in self.server.hosts:
            raise Refused(HTTPStatus.MISDIRECTED_REQUEST, "this host is not served")
        path, base = urlsplit(self.path).path, self.server.base
        if not hmac.compare_digest(path[: len(base) + 1].encode(), f"{base}/".encode()):
            raise Refused(HTTPStatus.NOT_FOUND, "no such page; use the whole link that you were given")
        return path[len(base) :]

    def _route(self, method: str, path: str) -> None:
        if method != "GET":
            self._same_origin()
        if (method, path) == ("GET", "/"):
            self._send(self.server.page, "text/html; charset=utf-8")
        elif (method, path) == ("GET", "/api/study"):
            self._json(self.server.study())
        elif (method, path) == ("POST", "/api/raters"):
            self._join()
        elif (method, path) == ("GET", "/api/rater"):
            self._rater_page(self._rater())
        elif method == "GET" and (match := re.fullmatch(r"/api/videos/(\d{1,5})/(left|right)", path)):
            self._video(self._rater(), int(match[1]), match[2])
        elif method == "PUT" and (match := re.fullmatch(r"/api/answers/(\d{1,5})", path)):
            self._save(self._rater(), int(match[1]))
        else:
            raise Refused(HTTPStatus.NOT_FOUND, "no such page")

    def _same_origin(self) -> None:
        origin, site = self.headers.get("Origin"), self.headers.get("Sec-Fetch-Site", "same-origin")
        allowed = {self.headers.get("Host"), urlsplit(self.server.url).netloc}
        if site != "same-origin" or (origin is not None and urlsplit(origin).netloc not in allowed):
            raise Refused(HTTPStatus.FORBIDDEN, "answers come from the study's own page only")

    def _rater(self) -> Rater:
        kind, _, token = self.headers.get("Authorization", "").partition(" ")
        rater = self.server.store.find(token) if kind == "Bearer" else None
        if rater is None:
            raise Refused(HTTPStatus.UNAUTHORIZED, "this link is not known here")
        return rater

    def _body(self) -> dict[str, Any]:
        if self.headers.get_content_type() != "application/json":
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send JSON")
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch(r"\d{1,9}", length):
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "say how long the body is")
        if int(length) > LARGEST_BODY:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {LARGEST_BODY} bytes")
        try:
            body = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            raise Refused(HTTPStatus.BAD_REQUEST, "this is not JSON") from None
        if not isinstance(body, dict):
            raise Refused(HTTPStatus.BAD_REQUEST, "send an object")
        return body

    def _join(self) -> None:
        if self._body().get("consent") is not True:
            raise Refused(HTTPStatus.UNPROCESSABLE_ENTITY, "consent is needed")
        if not self.server.joins.admits(self._address()):
            raise Refused(HTTPStatus.TOO_MANY_REQUESTS, "too many have joined from your network; try in an hour")
        token = self.server.store.join()
        if token is None:
            raise Refused(HTTPStatus.CONFLICT, "enough people have taken part")
        self._json({"token": token}, HTTPStatus.CREATED)

    def _rater_page(self, rater: Rater) -> None:
        by_id = self.server.store.plan.by_id
        prompts = [by_id[showing.comparison].prompt for showing in rater.showings]
        answers = {at: {"choices": answer.choices, "revision": answer.revision} for at, answer in rater.answers.items()}
        self._json({"prompts": prompts, "answers": answers})

    def _video(self, rater: Rater, position: int, side: str) -> None:
        if position >= len(rater.showings):
            raise Refused(HTTPStatus.NOT_FOUND, "no such pair")
        showing = rater.showings[position]
        pair = self.server.store.plan.by_id[showing.comparison]
        clip = pair.first if (side == "left") != showing.swapped else pair.second
        video, before = (self.server.folder / VIDEOS / clip.video).read_bytes(), (position, side) in rater.fetched
        rater.fetched.add((position, side))  # the answer may come on another connection before this one is done
        try:
            self._send(video, "video/mp4")
        except OSError:
            if not before:
                rater.fetched.discard((position, side))
            raise

    def _save(self, rater: Rater, position: int) -> None:
        if position >= len(rater.showings):
            raise Refused(HTTPStatus.NOT_FOUND, "no such pair")
        try:
            answer = SubmittedAnswer.model_validate(self._body())
        except ValidationError as error:
            wrong = error.errors()[0]
            where = ".".join(str(part) for part in wrong["loc"])
            raise Refused(HTTPStatus.UNPROCESSABLE_ENTITY, f"{where}: {wrong['msg']}") from None
        if set(answer.choices) != {dimension.key for dimension in self.server.store.plan.dimensions}:
            raise Refused(HTTPStatus.UNPROCESSABLE_ENTITY, "a choice for each dimension is needed")
        if not rater.may_answer(position):
            raise Refused(HTTPStatus.FORBIDDEN, "look at both videos of this pair first")
        try:
            self.server.store.save(rater, position, dict(answer.choices), answer.revision, answer.milliseconds)
        except Conflict as error:
            raise Refused(HTTPStatus.CONFLICT, str(error)) from None
        self._json({"saved": True})

    def _json(self, value: object, status: HTTPStatus = HTTPStatus.OK) -> None:
        self._send(json.dumps(value).encode(), "application/json", status)

    def _send(self, data: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.server.waiting.pop(self.connection, None)
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(data)),
            "Cache-Control": "no-store",
            "Content-Security-Policy": self.server.policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
        }.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        for start in range(0, len(data), CHUNK):  # each within the time that is given: a slow line may take its time
            self.wfile.write(data[start : start + CHUNK])
