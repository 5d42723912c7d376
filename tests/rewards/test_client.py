"""The client of a fleet: patience with a server that is away, help for stragglers, and no piling up."""

import socket
import threading
import time
from concurrent.futures import Future
from http.server import ThreadingHTTPServer

import pytest

pytest.importorskip("hypothesis")
pytest.importorskip("urllib3")

import torch

from rewards.test_http import NAMES, PROMPTS, VIDEOS, Server, truth, url  # noqa: F401 - a fixture
from sage_grpo.core.protocols import Prompt, Videos
from sage_grpo.core.reward import Reward
from sage_grpo.core.scores import Scores
from sage_grpo.rewards.errors import RewardError
from sage_grpo.rewards.function import CompositeReward
from sage_grpo.rewards.remote import client as module
from sage_grpo.rewards.remote.client import Away, CircuitBreaker, Client, RetryPolicy, Unanswered
from sage_grpo.rewards.remote.http import HttpReward
from sage_grpo.rewards.remote.wire import WireError
from support import make_config, make_loop, mean_brightness, weights


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.slow
def test_a_server_that_comes_back_is_waited_for():
    Server.faults, Server.token = [], None
    port = free_port()
    reward = HttpReward(f"http://127.0.0.1:{port}", NAMES, retries=0, deadline=60)
    ask = reward.submit(Videos(VIDEOS), PROMPTS)
    time.sleep(1.0)
    server = ThreadingHTTPServer(("127.0.0.1", port), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        assert torch.equal(ask().values, truth(VIDEOS, PROMPTS))
    finally:
        server.shutdown()
        server.server_close()


def test_a_server_that_is_silent_is_asked_until_the_deadline():
    """Scorers that start again let a gate wait. Five timeouts were five wrong answers, long before the deadline."""
    silent = 3

    class Late(Server):
        def do_POST(self):
            nonlocal silent
            silent -= 1
            if silent >= 0:
                time.sleep(0.5)
                self.close_connection = True
                return
            super().do_POST()

    Server.faults, Server.token = [], None
    server = ThreadingHTTPServer(("127.0.0.1", 0), Late)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        settings = {"retries": 0, "timeout": 0.2, "deadline": 30, "hedge": 0, "videos_per_request": len(PROMPTS)}
        reward = HttpReward(f"http://127.0.0.1:{server.server_port}", NAMES, **settings)
        assert torch.equal(reward.score(VIDEOS, PROMPTS).values, truth(VIDEOS, PROMPTS))
        silent = 10**6
        reward = HttpReward(f"http://127.0.0.1:{server.server_port}", NAMES, **settings | {"deadline": 1.0})
        started = time.monotonic()
        assert not reward.score(VIDEOS, PROMPTS).valid.any()
        assert 0.5 < time.monotonic() - started < 5
    finally:
        server.shutdown()
        server.server_close()


def test_a_server_that_takes_no_body_is_away():
    """A large body fills the sockets' buffers: sending it times out, which is no answer either."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(8)
        policy = RetryPolicy(timeout=0.3, deadline=1.5, retries=0, hedge=0)
        client = Client(f"http://127.0.0.1:{deaf.getsockname()[1]}", "NO_TOKEN", policy, connections=1)
        started = time.monotonic()
        with pytest.raises(Unanswered, match="Away"):
            client.ask("/score", bytes(30_000_000), bytes)
        assert time.monotonic() - started > 0.9  # asked until the deadline


def scripted(monkeypatch, answers, **patience):
    """A client whose requests take their answers, in seconds and a value or error, from a list."""
    client = Client("http://nowhere", "NO_TOKEN", RetryPolicy(**patience), connections=4)
    lock = threading.Lock()

    def request(method, path, body):
        with lock:
            seconds, answer = answers.pop(0) if len(answers) > 1 else answers[0]
        time.sleep(seconds)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(client, "_request", request)
    return client


def test_a_straggler_is_asked_for_twice(monkeypatch):
    quick = [(0.0, b"quick")] * 20
    client = scripted(monkeypatch, [*quick, (30.0, b"slow"), (0.0, b"second")], hedge=3.0)
    started = time.monotonic()
    found = [client.ask("/", b"", bytes) for _ in range(21)]
    assert found[-1] == b"second"
    assert time.monotonic() - started < 5
    assert client.second_requests == 1


@pytest.mark.slow
def test_second_requests_are_few(monkeypatch):
    client = scripted(monkeypatch, [*[(0.0, b"")] * 10, (0.3, b"")], hedge=1.0)
    for _ in range(40):
        client.ask("/", b"", bytes)
        client._seconds.clear()
        client._seconds.extend([0.05] * 10)  # as if all others were quick
    assert 1 <= client.second_requests <= module.SECOND_REQUESTS * client.requests + 1


def test_wrong_answers_are_counted_and_absence_is_not(monkeypatch):
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
    client = scripted(monkeypatch, [(0, Away("gone"))] * 12 + [(0, b"back")], retries=0)
    assert client.ask("/", b"", bytes) == b"back"
    client = scripted(monkeypatch, [(0, WireError("wrong"))] * 3 + [(0, b"right")], retries=2)
    with pytest.raises(Unanswered, match="wrong"):
        client.ask("/", b"", bytes)


def test_the_deadline_holds_for_an_answer_that_never_ends(monkeypatch):
    client = scripted(monkeypatch, [(30.0, b"")], deadline=0.3)
    started = time.monotonic()
    with pytest.raises(Unanswered, match="deadline"):
        client.ask("/", b"", bytes)
    assert time.monotonic() - started < 5


def test_an_open_breaker_lets_one_through_at_a_time():
    breaker, inside, most = CircuitBreaker(limit=2), [0], [0]
    lock = threading.Lock()

    def attempt():
        with breaker.passage(time.monotonic() + 20):
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            time.sleep(0.02)
            with lock:
                inside[0] -= 1
            raise Away("still")

    def attempts():
        for _ in range(3):
            with pytest.raises(Away):
                attempt()

    for _ in range(2):
        with pytest.raises(Away):
            attempt()
    assert breaker.open
    threads = [threading.Thread(target=attempts) for _ in range(5)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert most[0] == 1
    with breaker.passage(time.monotonic() + 1):
        pass
    assert not breaker.open  # one success, and all may go


def test_a_refusal_is_raised_where_scores_are_asked_for(url, monkeypatch):  # noqa: F811
    Server.token = "secret"
    ask = HttpReward(url, NAMES).submit(Videos(VIDEOS), PROMPTS)
    with pytest.raises(RewardError, match="refused with 401"):
        ask()


def test_large_videos_go_one_by_one(url, monkeypatch):  # noqa: F811
    reward, sizes = HttpReward(url, megabytes_per_request=0.0005), []
    inner = reward._ask
    monkeypatch.setattr(reward, "_ask", lambda videos, *rest: sizes.append(len(videos)) or inner(videos, *rest))
    assert torch.equal(reward.score(VIDEOS, PROMPTS).values, truth(VIDEOS, PROMPTS))
    assert sizes == [1, 1, 1]


def test_many_requests_come_back_in_order_and_never_pile_up(url, monkeypatch):  # noqa: F811
    reward, most, now, lock = HttpReward(url, connections=3, videos_per_request=1), [0], [0], threading.Lock()
    inner = reward.client.ask

    def counting(*arguments):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        try:
            return inner(*arguments)
        finally:
            with lock:
                now[0] -= 1

    monkeypatch.setattr(reward.client, "ask", counting)
    videos = torch.randint(0, 256, (24, 2, 8, 8, 3), dtype=torch.uint8)
    prompts = [Prompt("x" * i) for i in range(24)]
    assert torch.equal(reward.score(videos, prompts).values, truth(videos, prompts))
    assert most[0] <= 3


class Elsewhere(Reward):
    """Works in a thread of its own and notes what happens when."""

    names = ("light",)

    def __init__(self, groupwise=False):
        self.groupwise, self.log = groupwise, []

    def score(self, videos, prompts):
        return self.submit(Videos(videos), prompts)()

    def submit(self, videos, prompts):
        self.log.append(("begun", len(videos)))
        done = Future()
        done.set_result(Scores(mean_brightness(videos.frames)[:, None], torch.ones(len(videos), 1, dtype=torch.bool)))

        def ask():
            self.log.append(("asked", len(videos)))
            return done.result()

        return ask


@pytest.mark.parametrize(
    ("groupwise", "batch", "parts"),
    [
        (False, 1, [1] * 12),
        (False, 3, [3] * 4),
        (True, 1, [4] * 3),
        (True, 3, [4] * 3),
        (True, 4, [4] * 3),
        (True, 12, [4] * 3),
        (True, 6, [4] * 3),
    ],
)
def test_scoring_begins_while_videos_are_made_and_changes_nothing(groupwise, batch, parts):
    config = make_config(policy={"prompts_per_iteration": 3, "num_generations": 4, "batch_size": batch})
    reward = Elsewhere(groupwise)
    composite = CompositeReward([reward])
    loop, _ = make_loop(config, reward=composite)
    decode, made = loop.model.decode, []
    loop.model.decode = lambda x0: (reward.log.append(("made", len(x0))), made.append(x0), decode(x0))[-1]
    plain, _ = make_loop(config)
    loop.iterate(), plain.iterate()
    assert torch.equal(weights(loop), weights(plain))
    assert [n for what, n in reward.log if what == "begun"] == parts
    assert [n for what, n in reward.log if what == "asked"] == parts
    whats = [what for what, _ in reward.log]
    assert whats.index("asked") > max(i for i, what in enumerate(whats) if what == "begun")
    if not groupwise and len(parts) > 1:
        assert whats[:4] == ["made", "begun"] * 2  # the first is scored while the second is made


def test_rows_that_one_batch_lacks_and_another_has_are_an_error():
    class Shifting(Elsewhere):
        def submit(self, videos, prompts):
            self.log.append(1)
            count = len(videos) + (1 if len(self.log) == 1 else -1 if len(self.log) == 2 else 0)
            return lambda: Scores(torch.ones(count, 1, dtype=torch.float64), torch.ones(count, 1, dtype=torch.bool))

    loop, _ = make_loop(make_config(policy={"batch_size": 2}), reward=Shifting())
    with pytest.raises(ValueError, match="returned \\(3, 1\\) values for 2 videos"):
        loop.iterate()
