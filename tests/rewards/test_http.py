"""A scorer behind HTTP: whatever the server does, no number that it did not give for that video reaches the trainer."""

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("hypothesis")
pytest.importorskip("urllib3")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from sage_grpo.core.protocols import Prompt, Videos
from sage_grpo.core.scores import Scores
from sage_grpo.rewards.errors import RewardError
from sage_grpo.rewards.remote.http import HttpReward
from sage_grpo.rewards.remote.wire import (
    Limits,
    WireError,
    _unpack,
    pack_answer,
    pack_request,
    unpack_answer,
    unpack_request,
)

NAMES = ("light", "length")
BROKEN = {"500": (500, b"oh"), "garbage": (200, bytes(100)), "pickle": (200, b"\x80\x04cos\nsystem\n(S'true'\ntR.")}


def truth(videos, prompts):
    light = videos.double().flatten(1).mean(1)
    return torch.stack([light, torch.tensor([float(len(p.text)) for p in prompts], dtype=torch.float64)], 1)


class Server(BaseHTTPRequestHandler):
    faults, token, calls, needed, came = [], None, 0, None, 0

    def do_GET(self):
        told = {"frames": self.needed} if self.path.endswith("?frames=2") and self.needed else {}
        self.reply(200, json.dumps({"names": NAMES} | told).encode())

    def do_POST(self):
        type(self).calls += 1
        body = self.rfile.read(int(self.headers["Content-Length"]))
        type(self).came += len(body)
        if self.token and self.headers.get("Authorization") != f"Bearer {self.token}":
            self.reply(401, b"wrong token")
            return
        fault = self.faults.pop(0) if self.faults else ""
        videos, prompts, ids = unpack_request(body)
        scores = Scores(truth(videos.frames, prompts), torch.ones(len(videos), 2, dtype=torch.bool))
        names, values = list(NAMES), scores.values
        if fault in BROKEN:
            self.reply(*BROKEN[fault])
        elif fault == "disconnect":
            self.connection.close()
        else:
            time.sleep(1.0 if fault == "slow" else 0.0)
            if fault == "nan":
                values[0, 0] = torch.nan
            if fault == "inf":
                values[1, 1] = torch.inf
            if fault == "order":
                values, ids = values.flip(0), ids[::-1]
            if fault == "columns":
                values, names = values.flip(1), names[::-1]
            if fault == "count":
                values, ids = values[:-1], ids[:-1]
            if fault == "others":
                ids = [*ids[:-1], "somebody"]
            self.reply(200, pack_answer(Scores(values, torch.ones_like(values, dtype=torch.bool)), names, ids))

    def reply(self, status, data):
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *details):
        pass


def together(*arguments, **options):
    """All videos in one request."""
    return HttpReward(*arguments, videos_per_request=len(VIDEOS), **options)


@pytest.fixture
def url():
    Server.faults, Server.token, Server.calls, Server.needed, Server.came = [], None, 0, None, 0
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


VIDEOS = torch.randint(0, 256, (3, 2, 8, 8, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
PROMPTS = [Prompt("a"), Prompt("bb", {"text": "x", "image": object()}), Prompt("ccc")]


def test_the_servers_numbers_arrive(url):
    reward = together(url)
    assert reward.names == NAMES
    scores = reward.score(VIDEOS, PROMPTS)
    assert torch.equal(scores.values, truth(VIDEOS, PROMPTS))
    assert scores.valid.all()


@pytest.mark.parametrize("needed", [None, [0, 1], [1], [7], "all", [1.5]])
def test_frames_travel_that_the_server_asks_for(url, needed):
    """What it asks for wrongly is not heeded; a server that says nothing gets all."""
    Server.needed = needed
    scores = together(url).score(VIDEOS, PROMPTS)
    black = VIDEOS.clone()
    if needed == [1]:
        black[:, 0] = 0
    assert torch.equal(scores.values, truth(black, PROMPTS))
    pixels = black[:, needed].numel() if needed == [1] else VIDEOS.numel()
    assert pixels < Server.came < pixels + 700


def test_few_frames_do_not_make_requests_of_more_videos(url):
    """Or the server, which makes room for whole ones, would refuse what fitted before."""
    Server.needed = [1]
    whole = VIDEOS[:1].nbytes / 1e6
    HttpReward(url, videos_per_request=3, megabytes_per_request=whole).score(VIDEOS, PROMPTS)
    assert Server.calls == 3


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["500", "disconnect", "garbage", "pickle", "count", "others", "slow"])
@pytest.mark.parametrize("times", [1, 9])
def test_a_fault_is_asked_again_and_then_masked(url, fault, times):
    Server.faults = [fault] * times
    scores = together(url, timeout=0.5, retries=2).score(VIDEOS, PROMPTS)
    if times == 1 or fault == "slow":  # silence is no wrong answer: it is asked until the deadline
        assert scores.valid.all()
        assert torch.equal(scores.values, truth(VIDEOS, PROMPTS))
    else:
        assert not scores.valid.any()
        assert scores.values.isnan().all()
        assert Server.calls == 3


@pytest.mark.parametrize("fault", ["order", "columns"])
def test_another_order_is_put_right(url, fault):
    Server.faults = [fault]
    assert torch.equal(together(url).score(VIDEOS, PROMPTS).values, truth(VIDEOS, PROMPTS))


@pytest.mark.parametrize(("fault", "place"), [("nan", (0, 0)), ("inf", (1, 1))])
def test_what_is_not_finite_is_masked_alone(url, fault, place):
    Server.faults = [fault]
    scores = together(url).score(VIDEOS, PROMPTS)
    assert not scores.valid[place]
    assert scores.valid.sum() == 5


def test_tokens_come_from_the_environment(url, monkeypatch):
    Server.token = "secret"
    with pytest.raises(RewardError, match="refused with 401: wrong token"):
        together(url).score(VIDEOS, PROMPTS)
    monkeypatch.setenv("SAGE_GRPO_TOKEN", "secret")
    assert together(url).score(VIDEOS, PROMPTS).valid.all()


def test_a_server_that_is_not_there():
    with pytest.raises(RewardError, match="is the server up"):
        together("http://127.0.0.1:9")
    assert not together("http://127.0.0.1:9", NAMES, deadline=0.5).score(VIDEOS, PROMPTS).valid.any()
    with pytest.raises(RewardError, match="must begin with http"):
        together("file:///etc/passwd")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_no_bytes_are_trusted(data):
    with pytest.raises(WireError):
        unpack_request(data)
    with pytest.raises(WireError):
        unpack_answer(data, NAMES, ["x"])


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_changed_byte_is_an_error_or_harmless(place, value):
    """Pixels may change; counts, ids and shapes may not."""
    data = bytearray(pack_request(Videos(VIDEOS), PROMPTS, ["1", "2", "3"]))
    data[place % len(data)] = value
    try:
        videos, prompts, ids = unpack_request(bytes(data))
    except WireError:
        return
    assert videos.frames.dtype == torch.uint8
    assert len(videos) == len(prompts) == len(ids) == len(set(ids))


def test_sound_and_rates_travel_only_if_somebody_listens(url):
    """What is not heard is not sent; what is comes as it was."""
    frames = VIDEOS
    sound = torch.linspace(-1, 1, 3 * 2 * 40).view(3, 2, 40)
    videos, back = Videos(frames, 24.0, sound, 16_000), []
    for uses_audio in (False, True):
        reward = HttpReward(url, NAMES, uses_audio=uses_audio)
        reward.client.ask = lambda path, body, read: back.append(unpack_request(body)[0]) or Scores.failed(3, 2)
        reward.videos_per_request = 3
        reward.submit(videos, PROMPTS)()
    assert [v.sound is None for v in back] == [True, False]
    assert torch.equal(back[1].sound, sound)
    assert (back[1].frame_rate, back[1].sample_rate) == (24.0, 16_000)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sound": torch.zeros(2, 1, 4)}, "`sound` must be float32"),
        ({"sound": torch.zeros(3, 4)}, "`sound` must be float32"),
        ({"sample_rate": -5}, "`sample_rate` must be a number"),
        ({"frame_rate": 1e9}, "`frame_rate` must be a number"),
    ],
)
def test_sound_that_is_no_sound_is_refused(changes, message):
    good = {"frame_rate": 24.0, "sound": torch.zeros(3, 1, 4), "sample_rate": 8000}
    with pytest.raises(WireError, match=message):
        unpack_request(pack_request(Videos(VIDEOS, **(good | changes)), PROMPTS, ["1", "2", "3"]))


ODD = [
    {"names": None},
    {"names": 5},
    {"names": {"light": 1, "length": 2}},
    {"names": "light"},
    {"names": [["light"], "length"]},
    {"ids": None},
    {"ids": {"a": 1, "b": 2}},
    {"ids": "ab"},
    {"ids": [["a"], "b"]},
    {"ids": ["a", "b", "b"]},
]


@pytest.mark.parametrize("odd", ODD, ids=str)
def test_words_of_another_kind_are_a_wrong_answer(odd):
    words = {"version": 1, "names": list(NAMES), "ids": ["a", "b"]} | odd
    tensors = {"values": torch.zeros(2, 2, dtype=torch.float64), "valid": torch.ones(2, 2, dtype=torch.bool)}
    with pytest.raises(WireError):
        unpack_answer(save(tensors, metadata={"words": json.dumps(words)}), NAMES, ["a", "b"])


def test_names_that_drip_in_are_given_up(url, monkeypatch):
    def drip(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", "100000")
        handler.end_headers()
        with contextlib.suppress(OSError):
            for _ in range(60):
                handler.wfile.write(b" ")
                time.sleep(0.2)

    monkeypatch.setattr(Server, "do_GET", drip)
    began = time.monotonic()
    with pytest.raises(RewardError, match="no whole answer within 1 s"):
        HttpReward(url, timeout=1.0)
    assert time.monotonic() - began < 6


def test_limits():
    data = pack_request(Videos(VIDEOS), PROMPTS, ["1", "2", "3"])
    for limits, message in (
        (Limits(megabytes=0.0001), "MB are more"),
        (Limits(words=10), "bytes of description"),
        (Limits(videos=2), "3 videos are more"),
        (Limits(prompt=2), "3 characters is longer"),
    ):
        with pytest.raises(WireError, match=message):
            unpack_request(data, limits)
    with pytest.raises(WireError, match="another version"):
        _unpack(save({"videos": VIDEOS}, metadata={"words": "{}"}), Limits())
