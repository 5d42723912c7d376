"""The server's limits: requests that hide others, too many joins, half-open and trickling connections, slow lines."""

import os
import socket
import threading
import time
from contextlib import suppress

import pytest

from sage_grpo.evaluation.study import guard
from sage_grpo.evaluation.study import server as serving
from study.client import LEFT, SAME


def raw(client, data, wait=10):
    """All that comes back on one connection."""
    with socket.create_connection(("127.0.0.1", client.server.server_address[1]), timeout=wait) as line:
        line.sendall(data)
        line.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: line.recv(65_536), b""))


@pytest.mark.parametrize(
    "head",
    [
        "GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST /api/raters HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: 2\r\nContent-Length: {length}\r\n\r\n",
    ],
)
def test_what_follows_a_head_is_never_the_next_request(make, start, head):
    client = start(*make())
    hidden = b"GET /api/study HTTP/1.1\r\nHost: localhost\r\n\r\n"
    said = raw(client, head.format(length=len(hidden)).encode() + hidden)
    assert said.startswith(b"HTTP/1.1 400")
    assert said.count(b"HTTP/1.1 ") == 1


def test_one_address_has_so_many_places_an_hour(make, start, monkeypatch):
    monkeypatch.setattr(guard, "JOINS", 3)
    folder, *rest = make()
    client = start(folder, *rest)
    monkeypatch.setattr(client.server.joins, "now", lambda: clock[0])
    clock = [0.0]
    statuses = [
        client.ask("POST", "/api/raters", {"consent": True}, X_Forwarded_For=f"10.0.0.{i}")[0] for i in range(5)
    ]
    assert statuses == [201, 201, 201, 429, 429]  # the header is nobody's word here
    assert len(list((folder / "answers").glob("*.jsonl"))) == 3
    clock[0] = guard.HOUR + 1
    assert client.ask("POST", "/api/raters", {"consent": True})[0] == 201


def test_behind_a_proxy_its_word_counts(make, start, monkeypatch):
    monkeypatch.setattr(guard, "JOINS", 1)
    client = start(*make(), public="https://study.example.org")

    def join(forwarded):
        return client.ask("POST", "/api/raters", {"consent": True}, X_Forwarded_For=forwarded)[0]

    assert [join("10.0.0.1"), join("10.0.0.2"), join("6.6.6.6, 10.0.0.1")] == [201, 201, 429]
    assert [join("2001:db8::1"), join("2001:db8::2"), join("2001:db8:0:1::1")] == [201, 429, 201]


def test_no_answer_without_both_videos(make, start):
    folder, *rest = make()
    client = start(folder, *rest)
    token = client.join()
    assert client.put(token, 0, SAME, fetch=False) == 403
    client.ask("GET", "/api/videos/0/left", token=token)
    assert client.put(token, 0, SAME, fetch=False) == 403
    assert client.put(token, 0, SAME) == 200
    assert client.put(token, 1, SAME, fetch=False) == 403
    client.close()
    again = start(folder, *rest)  # what was fetched before is not written down
    assert again.put(token, 1, LEFT, fetch=False) == 200


def test_an_answer_changes_so_often_and_no_more(make, start):
    folder, *rest = make()
    client = start(folder, *rest)
    token = client.join()
    most = serving.MOST_REVISIONS
    statuses = [client.put(token, 0, SAME, revision=revision) for revision in (1, most, most + 1)]
    assert statuses == [200, 200, 422]


def test_half_open_connections_make_room(make, start, monkeypatch):
    monkeypatch.setattr(guard, "MOST_CONNECTIONS", 8)
    client = start(*make())
    address = ("127.0.0.1", client.server.server_address[1])
    silent = [socket.create_connection(address, timeout=10) for _ in range(30)]
    for line in silent:
        line.sendall(b"GET / HT")
    assert client.ask("GET", "/")[0] == 200
    assert sum("process_request_thread" in thread.name for thread in threading.enumerate()) <= 8
    monkeypatch.setattr(guard, "REQUEST_SECONDS", 0.1)
    for line in silent:  # the rest is ended in time, not only when others need the room
        with suppress(ConnectionResetError):
            assert line.recv(10) == b""
        line.close()


def test_a_request_that_trickles_is_ended(make, start, monkeypatch):
    monkeypatch.setattr(guard, "REQUEST_SECONDS", 0.5)
    client = start(*make())
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", client.server.server_address[1])) as line:
        line.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
        with suppress(OSError):  # a pipe that is broken, or a reset
            while time.monotonic() - began < 20:
                line.sendall(b"x")
                time.sleep(0.1)
    assert time.monotonic() - began < 15


@pytest.mark.slow
def test_a_slow_line_gets_the_whole_video(make, start, monkeypatch):
    folder, plan, plan_hash = make()
    client = start(folder, plan, plan_hash)
    token = client.join()
    monkeypatch.setattr(serving.Handler, "timeout", 0.5)  # for each part, not for the whole
    whole = os.urandom(8_000_000)
    for path in (folder / "videos").iterdir():
        path.write_bytes(whole)
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    line.connect(("127.0.0.1", client.server.server_address[1]))
    request = f"GET /api/videos/0/left HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
    line.sendall(request.encode())
    data, began = b"", time.monotonic()
    while part := line.recv(100_000):
        data += part
        if data.endswith(whole[-100:]):
            break
        time.sleep(0.02)  # at least eighty times
    line.close()
    assert time.monotonic() - began > 1
    assert data.endswith(whole)


@pytest.mark.parametrize(
    ("error", "printed"), [(BrokenPipeError(), False), (TimeoutError(), False), (KeyError(1), True)]
)
def test_a_browser_that_hangs_up_prints_no_traceback(make, start, capfd, error, printed):
    server = start(*make()).server
    try:
        raise error
    except type(error):
        server.handle_error(None, ("192.0.2.7", 1))
    said = capfd.readouterr().err
    assert ("Traceback" in said) == printed
    assert "192.0.2.7" not in said
