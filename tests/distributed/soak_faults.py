"""Reward faults of the soak: which sample meets which is a function of its video and prompt alone.

So a rollout that is made again after a kill meets the same ones, and a run without any fleet knows what is masked.
"""

import hashlib
import os
import random
import signal
import threading
import time

import torch

from sage_grpo.core.reward import Reward
from sage_grpo.core.scores import Scores
from serve.faults import NAMES, NOT_FINITE, ON_THE_WAY, Faulty, Relay, truth

PER_REQUEST = 2  # videos; equal to the batch of the trainer, so that its batches are requests
WRONG_COUNT = ("too few", "too many")
LOSES_REQUEST = ("raise", *WRONG_COUNT)
LOSES_NOTHING = ("kill", "slow")
SHARES = {
    "nan": 0.03,
    "inf": 0.02,
    "minus inf": 0.02,
    "raise": 0.02,
    "too few": 0.015,
    "too many": 0.015,
    "kill": 0.002,
    "slow": 0.01,
}
ON_THE_WAY_SHARE = 0.08  # of requests
AT_MOST = 2  # times that one request is spoilt on its way, below the client's retries: it costs no sample


def planted(video, prompt, seed):
    """The fault of a sample, and a name for it."""
    key = hashlib.sha256(f"{seed} {prompt.text} ".encode() + video.contiguous().numpy().tobytes()).digest()
    place = int.from_bytes(key[:8], "big") / 2**64
    for kind, share in SHARES.items():
        if place < share:
            return kind, key.hex()
        place -= share
    return "", key.hex()


def kinds(videos, prompts, seed):
    return [planted(video, prompt, seed) for video, prompt in zip(videos.cpu(), prompts, strict=True)]


def expected(videos, prompts, seed):
    """True scores, and which of them a run must have: of one rank, in requests of `PER_REQUEST`."""
    found = kinds(videos, prompts, seed)
    valid = torch.ones(len(videos), len(NAMES), dtype=torch.bool)
    for i, (kind, key) in enumerate(found):
        if kind in NOT_FINITE:
            valid[i, column(key)] = False
        if kind in LOSES_REQUEST:
            first = i - i % PER_REQUEST
            valid[first : first + PER_REQUEST] = False
    return Scores(truth(videos.cpu(), prompts), valid)


def column(key):
    return int(key[-1], 16) % len(NAMES)


class Known(Reward):
    """A scorer in the trainer's own process that masks what the fleet would have lost."""

    names = NAMES

    def __init__(self, seed):
        self.seed = seed

    def score(self, videos, prompts):
        return expected(videos, prompts, self.seed)


class Planted(Faulty):
    """The scorer of the fleet."""

    def __init__(self, notes, seed):
        super().__init__(notes)
        self.seed = seed

    def score(self, videos, prompts):
        values = truth(videos, prompts)
        for i, (kind, key) in enumerate(kinds(videos, prompts, self.seed)):
            if kind == "kill" and self.first(key):
                os.kill(os.getpid(), signal.SIGKILL)
            if kind == "slow" and self.first(key):
                time.sleep(1.0)
            if kind in NOT_FINITE:
                values[i, column(key)] = NOT_FINITE[kind]
            if kind == "raise":
                raise RuntimeError("planted")
            if kind in WRONG_COUNT:
                values = values[:-1] if kind == "too few" else torch.cat([values, values])
                return Scores(values, torch.ones_like(values, dtype=torch.bool))
        return Scores(values, torch.ones_like(values, dtype=torch.bool))


class SpoilingRelay(Relay):
    """Spoils some answers on their way, none of them more often than the client asks again."""

    def __init__(self, target, rng=None):
        super().__init__(target, slow=1.0)
        self.rng, self.met, self.spoils = rng or random.Random(0), {}, threading.Event()
        self.spoils.set()

    def choose(self, body):
        if not self.spoils.is_set() or self.rng.random() > ON_THE_WAY_SHARE:
            return ""
        key = hashlib.sha256(body).digest()
        self.met[key] = self.met.get(key, 0) + 1
        return self.rng.choice(ON_THE_WAY) if self.met[key] <= AT_MOST else ""
