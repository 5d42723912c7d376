"""One scorer of a fleet, without Ray: requests share calls, faults stay with their request."""

import time

import pytest

pytest.importorskip("urllib3")

import torch

from sage_grpo.core.protocols import Prompt, Videos
from sage_grpo.core.reward import Reward
from sage_grpo.core.scores import Scores
from sage_grpo.rewards.remote.wire import pack_request, unpack_answer
from sage_grpo.serve.scorer import SICK, Scorer, WrongScores
from serve.faults import NAMES, truth


class Counting(Reward):
    names = NAMES

    def __init__(self, groupwise=False, wrong=None):
        self.calls, self.groupwise, self.wrong = [], groupwise, wrong

    def score(self, videos, prompts):
        self.calls.append(len(videos))
        if any(p.text == self.wrong for p in prompts):
            raise RuntimeError("planted")
        values = truth(videos, prompts)
        values[[i for i, p in enumerate(prompts) if p.text == "nan"]] = float("nan")
        return Scores(values, torch.ones_like(values, dtype=torch.bool))


def request(count, size=8, text="a", start=0):
    videos = torch.randint(0, 256, (count, 2, size, size, 3), dtype=torch.uint8)
    prompts, ids = [Prompt(text)] * count, [f"{start}-{i}" for i in range(count)]
    return pack_request(Videos(videos), prompts, ids), truth(videos, prompts), ids


def test_requests_share_calls_and_get_their_own_scores():
    reward = Counting()
    asked = [request(n, size, start=i) for i, (n, size) in enumerate([(2, 8), (3, 16), (2, 8), (4, 8), (12, 8)])]
    answers = Scorer(reward, batch=8, seconds=9).answer([body for body, _, _ in asked])
    for answer, (_, wanted, ids) in zip(answers, asked, strict=True):
        assert torch.equal(unpack_answer(answer, NAMES, ids).values, wanted)
    assert sorted(reward.calls) == [3, 8, 12]  # up to a batch, a larger request alone, other sizes apart


def test_groups_are_never_mixed():
    reward = Counting(groupwise=True)
    Scorer(reward, batch=8, seconds=9).answer([request(2, start=i)[0] for i in range(3)])
    assert reward.calls == [2, 2, 2]


def test_a_fault_stays_with_its_request():
    asked = [request(2, text=text, start=i) for i, text in enumerate(["a", "bad", "nan"])]
    answers = Scorer(Counting(wrong="bad"), batch=8, seconds=9).answer([body for body, _, _ in asked])
    assert torch.equal(unpack_answer(answers[0], NAMES, asked[0][2]).values, asked[0][1])
    assert isinstance(answers[1], RuntimeError)
    assert not unpack_answer(answers[2], NAMES, asked[2][2]).valid.any()


@pytest.mark.parametrize("change", [lambda v: v[:-1], lambda v: torch.cat([v, v]), lambda v: v[:, :1]])
def test_scores_that_fit_no_video_are_an_error(change):
    class Wrong(Counting):
        def score(self, videos, prompts):
            values = change(truth(videos, prompts))
            return Scores(values, torch.ones_like(values, dtype=torch.bool))

    (answer,) = Scorer(Wrong(), batch=8, seconds=9).answer([request(3)[0]])
    assert isinstance(answer, WrongScores)


def test_health():
    reward = Counting(wrong="bad")
    scorer = Scorer(reward, batch=8, seconds=0.05)
    for _ in range(SICK):
        scorer.check_health()
        scorer.answer([request(1, text="bad")[0]])
    with pytest.raises(RuntimeError, match="in a row failed"):
        scorer.check_health()
    scorer.answer([request(1)[0]])
    scorer.check_health()

    def slow(videos, prompts):
        time.sleep(0.2)
        with pytest.raises(RuntimeError, match="taken more than"):
            scorer.check_health()
        return Scores(truth(videos, prompts), torch.ones(len(videos), 2, dtype=torch.bool))

    reward.score = slow
    assert isinstance(scorer.answer([request(1)[0]])[0], bytes)
    scorer.check_health()
