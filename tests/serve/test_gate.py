"""The gate of a fleet, without Ray: who may ask, how much, and what becomes of a scorer's failure."""

import asyncio
import hmac

import pytest

pytest.importorskip("starlette")
pytest.importorskip("urllib3")

import torch
from starlette.testclient import TestClient

from sage_grpo.core.protocols import Prompt, Videos
from sage_grpo.core.reward import Reward
from sage_grpo.core.scores import Scores
from sage_grpo.rewards.remote.wire import Chosen, Limits, pack_request, unpack_answer
from sage_grpo.serve import gate as module
from sage_grpo.serve.gate import Busy, Gate, ScorerEndpoint, fingerprint
from sage_grpo.serve.scorer import Scorer
from serve.faults import NAMES, truth

VIDEOS = torch.randint(0, 256, (3, 2, 8, 8, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
PROMPTS, IDS = [Prompt("a"), Prompt("bb"), Prompt("ccc")], ["x", "y", "z"]
TOKEN = {"Authorization": "Bearer secret"}


class Truth(Reward):
    names = NAMES

    def score(self, videos, prompts):
        values = truth(videos, prompts)
        return Scores(values, torch.ones_like(values, dtype=torch.bool))


class Mean(Truth):
    names = ("mean",)

    def score(self, videos, prompts):
        values = videos.double().flatten(1).mean(1, keepdim=True)
        return Scores(values, torch.ones_like(values, dtype=torch.bool))


def client(*rewards, seconds=5.0, limits=None, fault=None):
    async def find():
        return {type(r).__name__: ScorerEndpoint(r.names, False, asking(r), looking(r)) for r in rewards or (Truth(),)}

    def looking(reward):
        async def look(frames):
            return Scorer(reward, 8, seconds).frame_indices(frames)

        return look

    def asking(reward):
        scorer = Scorer(reward, 8, seconds)

        async def ask(body, count):
            if isinstance(fault, float):
                await asyncio.sleep(fault)
            elif fault is not None:
                raise fault
            return scorer.answer([body])[0]

        return ask

    return TestClient(Gate(fingerprint("secret"), limits or Limits(), seconds, find).app)


def post(client, body=None, headers=TOKEN):
    return client.post("/score", content=body or pack_request(Videos(VIDEOS), PROMPTS, IDS), headers=headers)


def test_scores_of_several_scorers_side_by_side():
    asked = client(Truth(), Mean())
    about = asked.get("/about", headers=TOKEN).json()
    assert about["names"] == ["light", "length", "mean"]
    assert about["scorers"] == {"Truth": list(NAMES), "Mean": ["mean"]}
    scores = unpack_answer(post(asked).content, about["names"], IDS)
    assert torch.equal(scores.values[:, :2], truth(VIDEOS, PROMPTS))
    assert torch.equal(scores.values[:, 2], truth(VIDEOS, PROMPTS)[:, 0])


class First(Mean):
    """Needs two frames of each video."""

    names = ("first",)

    def frame_indices(self, frames):
        return [0, frames - 1]

    def score(self, videos, prompts):
        return super().score(videos[:, self.frame_indices(videos.shape[1])], prompts)


class Middle(First):
    names = ("middle",)

    def frame_indices(self, frames):
        return [frames // 2]


def test_what_frames_are_needed_is_told_when_asked():
    def needed(frames, *rewards):
        return client(*rewards).get(f"/about?frames={frames}", headers=TOKEN).json().get("frames", "untold")

    assert needed(81, First(), Middle()) == [0, 40, 80]
    assert needed(81, First(), Mean()) is None  # one of them needs all
    assert needed("x", First()) == needed("9" * 400, First()) == "untold"
    assert {needed(odd, First()) for odd in ("0", "²", "٣", "-1", "1e3", "0x10", " 3", "")} == {"untold"}


def test_a_busy_scorer_is_asked_for_its_frames_again():
    """Away, and not an answer that would be remembered."""

    async def find():
        return {"busy": ScorerEndpoint(("x",), False, busy, busy)}

    async def busy(*anything):
        raise Busy("too many wait")

    asked = TestClient(Gate(fingerprint("secret"), Limits(), 5.0, find).app)
    assert asked.get("/about?frames=9", headers=TOKEN).status_code == 503
    assert asked.get("/about", headers=TOKEN).json()["names"] == ["x"]


def test_frames_that_did_not_travel_change_no_score():
    videos = torch.randint(0, 256, (3, 9, 8, 8, 3), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    names = ["first", "middle"]
    whole = post(client(First(), Middle()), pack_request(Videos(videos), PROMPTS, IDS))
    few = pack_request(Videos(videos[:, [0, 4, 8]]), PROMPTS, IDS, Chosen([0, 4, 8], 9))
    scores = unpack_answer(post(client(First(), Middle()), few).content, names, IDS)
    assert torch.equal(scores.values, unpack_answer(whole.content, names, IDS).values)


@pytest.mark.parametrize(
    "chosen",
    [
        Chosen([0, 4], 9),
        Chosen([0, 4, 9], 9),
        Chosen([4, 0, 8], 9),
        Chosen([0, 0, 8], 9),
        Chosen([-1, 0, 1], 9),
        Chosen([0, 1, 2], 10**9),
        Chosen([0, 1, 2], "9"),
        Chosen([0, 1, 2.5], 9),
        Chosen(["0", 1, 2], 9),
        Chosen([0, 1, True], 9),
    ],
)
def test_frames_that_cannot_be_are_refused(chosen):
    body = pack_request(Videos(torch.zeros(3, 3, 8, 8, 3, dtype=torch.uint8)), PROMPTS, IDS, chosen)
    assert post(client(), body).status_code == 400


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret2"}])
def test_without_the_token_nothing_is_told(headers):
    assert post(client(), headers=headers).status_code == 401
    assert client().get("/about", headers=headers).status_code == 401
    assert client().get("/health").status_code == 200


def test_tokens_are_compared_in_constant_time(monkeypatch):
    compared, real = [], hmac.compare_digest

    def compare(a, b):
        compared.append((len(a), len(b)))
        return real(a, b)

    monkeypatch.setattr(module.hmac, "compare_digest", compare)
    for token in ("s", "secret", "x" * 5000):
        post(client(), headers={"Authorization": f"Bearer {token}"})
    assert compared == [(64, 64)] * 3  # hashes: neither length nor a common beginning shows


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"garbage", 400),
        (b"\x80\x04cos\nsystem\n(S'touch pwned'\ntR.", 400),
        (bytes(2_000_000), 413),
    ],
)
def test_what_is_no_request_gets_no_further(body, status):
    said = post(client(limits=Limits(megabytes=1)), body)
    assert said.status_code == status


def test_a_body_larger_than_its_header_says_is_cut_off():
    """Its parts come one by one, as from a real server: a test client would join them to one."""
    taken, sent = [], []
    headers = [(b"authorization", b"Bearer secret"), (b"content-length", b"400000")]
    scope = {"type": "http", "method": "POST", "path": "/score", "query_string": b"", "headers": headers}

    async def receive():
        taken.append(bytes(400_000))
        return {"type": "http.request", "body": taken[-1], "more_body": len(taken) < 10}

    async def send(message):
        sent.append(message)

    asyncio.run(client(limits=Limits(megabytes=1)).app(scope, receive, send))
    start, body = sent
    assert (start["status"], len(taken)) == (413, 3)
    assert b"more than the 1000000 bytes" in body["body"]


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (RuntimeError("planted"), 500),
        (Busy("nobody"), 503),
        (30.0, 504),
    ],
)
def test_what_goes_wrong_behind_the_gate_is_a_status_and_no_score(fault, status):
    assert post(client(fault=fault, seconds=0.2)).status_code == status


def test_prompts_cannot_be_larger_than_allowed():
    body = pack_request(Videos(VIDEOS[:1]), [Prompt("x" * 1_000_000)], ["x"])
    said = post(client(), body)
    assert (said.status_code, "characters" in said.text) == (400, True)
