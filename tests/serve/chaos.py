"""Faults in a real fleet while a model trains against it: `python -m serve.chaos --faults 100`.

A small model trains with all its rewards from Ray Serve on this machine, once for each kind of fault. Every sample
that has no score at the end is known; a second training, without any fleet, masks just those. Both must end with the
same weights to the bit, so no number that is not finite, missing or of another sample has reached an advantage.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from sage_grpo.config import FleetConfig
from sage_grpo.core.collect import RewardFailure
from sage_grpo.core.protocols import Prompt
from sage_grpo.core.reward import Reward
from sage_grpo.core.scores import Scores
from sage_grpo.rewards.errors import RewardError
from sage_grpo.rewards.remote.http import HttpReward
from serve.faults import IN_SCORER, NAMES, NOT_FINITE, ON_THE_WAY, Relay, kill_all, truth
from support import make_config, make_loop, weights

TOKEN = "only for this test"
KINDS = (*IN_SCORER, *ON_THE_WAY, "all gone", "1 GB", "wrong token")
SLOW_KINDS = {"kill", "all gone"}  # a process is made anew for each of them
PROMPTS, GROUP = 4, 4
MASKED = {*NOT_FINITE, "too few", "too many", "raise"}  # of these a sample loses its score
POLICY = {
    "prompts_per_iteration": PROMPTS,
    "num_generations": GROUP,
    "batch_size": GROUP,
    "max_failed_rewards": 0.9,
    "reward_weights": (1.0, 1.0),
}


@contextmanager
def running_fleet(port, replicas=2, seconds=20, scorer="serve.faults:Faulty", **options):
    """A fleet of scorers that fail on demand; its address and the folder of their notes."""
    from sage_grpo.serve import fleet

    os.environ["SAGE_GRPO_TOKEN"] = TOKEN
    tests = str(Path(__file__).parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])
    sys.path.insert(0, tests)
    notes = tempfile.mkdtemp(prefix="fleet-")
    entry = {"type": scorer, "options": {"notes": notes, **options}, "replicas": replicas, "cpus": 0.5, "batch": 4}
    url = fleet.start(FleetConfig(scorers=[entry], port=port, seconds=seconds, megabytes=200))
    try:
        yield url, notes
    finally:
        fleet.stop()


@dataclass
class Plan:
    """Which samples of which iteration meet a fault: every other group, one sample of it."""

    kind: str
    faults: int
    seed: int = 0

    @property
    def iterations(self):
        return -(-self.faults // (PROMPTS // 2))

    def prompts(self, start, count):
        return [Prompt(f"prompt {i}", {"number": i}) for i in range(start, start + count)]

    def fault(self, number):
        """Of the group of a prompt: the place of the sample that fails, if there is one."""
        order = number // 2
        return (order % GROUP, order) if number % 2 == 0 and order < self.faults else None

    def true_scores(self, videos, prompts):
        constant = self.kind == "constant" and self.fault(prompts[0].columns["number"])
        return torch.full((len(videos), 2), 7.0, dtype=torch.float64) if constant else truth(videos, prompts)


class Injecting(Reward):
    """A fleet as the trainer sees it, with a fault for some samples; remembers what came back."""

    names = NAMES

    def __init__(self, reward, relay, plan, notes):
        self.reward, self.relay, self.plan, self.notes, self.seen = reward, relay, plan, notes, []

    def score(self, videos, prompts):
        kind, number = self.plan.kind, prompts[0].columns["number"]
        planted = self.plan.fault(number)
        told = list(prompts)
        if planted and kind in IN_SCORER:
            place, order = planted
            for i in range(len(told)) if kind == "constant" else (place,):
                told[i] = Prompt(prompts[i].text, {"fault": kind, "once": f"{kind}-{order}"})
        if planted and kind in ON_THE_WAY:
            with self.relay.lock:
                self.relay.faults.append(kind)
        if planted and kind == "all gone":
            kill_all(self.notes)
        scores = self.reward.score(videos, told)
        self.seen.append((number, scores))
        return scores


class Masked(Reward):
    """Without a fleet: the true scores, and the mask that the fleet's run ended with."""

    names = NAMES

    def __init__(self, seen, plan):
        self.seen, self.plan = dict(seen), plan

    def score(self, videos, prompts):
        number = prompts[0].columns["number"]
        return Scores(self.plan.true_scores(videos, prompts), self.seen[number].valid)


def train(reward, plan):
    loop, recorder = make_loop(make_config(seed=plan.seed, policy=POLICY), reward=reward, prompts=plan.prompts)
    loop.run(plan.iterations)
    return loop, recorder


def check_kind(kind, faults, url, notes, seed=0):
    """Train through the faults and without a fleet; what was found."""
    plan, relay, started = Plan(kind, faults, seed), Relay(url), time.monotonic()
    try:
        # on busy cores Ray takes more than two minutes to make scorers anew after all were killed
        reward = HttpReward(relay.url, timeout=15, deadline=300, videos_per_request=GROUP)
        injecting = Injecting(reward, relay, plan, notes)
        loop, recorder = train(injecting, plan)
    finally:
        relay.close()
    other, _ = train(Masked(injecting.seen, plan), plan)
    planted = [number for number, _ in injecting.seen if plan.fault(number)]
    lost = sum(int((~scores.valid.all(1)).sum()) for _, scores in injecting.seen)
    right = all(
        torch.equal(scores.values[scores.valid], expected[scores.valid])
        for (number, scores), expected in zip(injecting.seen, expected_values(recorder, plan), strict=True)
    )
    if kind in MASKED:  # a scorer's own error takes its whole request with it, a number that is not finite only itself
        assert lost == len(planted) * (1 if kind in NOT_FINITE else GROUP), (kind, lost, len(planted))
    else:
        assert lost == 0, f"{kind}: {lost} samples have no score, although asking again would have got it"
    assert len(planted) == faults
    assert kind not in ON_THE_WAY or len(relay.done) == faults
    assert right, f"{kind}: a score is not that of its sample"
    assert torch.isfinite(weights(loop)).all()
    assert torch.equal(weights(loop), weights(other)), f"{kind}: not the run in which the same samples were masked"
    return {
        "faults": len(planted),
        "samples without a score": lost,
        "second requests": reward.client.second_requests,
        "seconds": round(time.monotonic() - started, 1),
    }


def expected_values(recorder, plan):
    """The true scores, batch after batch, as the run made its videos."""
    for rollouts in recorder.rollouts:
        for i, videos in enumerate(rollouts.videos):
            yield plan.true_scores(videos.frames, rollouts.prompts[i * GROUP : (i + 1) * GROUP])


def check_large_bodies(faults, url):
    """1 GB: refused by its header, or cut off while it comes; the fleet goes on."""
    import urllib3

    pool, refused = urllib3.PoolManager(retries=False), 0
    headers = {"Authorization": f"Bearer {TOKEN}"}
    for i in range(faults):
        body = (bytes(1 << 20) for _ in range(1 << 10))  # never whole in memory
        given = headers | ({"Content-Length": str(1 << 30)} if i % 2 else {})
        try:
            refused += pool.request("POST", url + "/score", body=body, headers=given, timeout=60).status == 413
        except urllib3.exceptions.HTTPError:  # it hung up while we were talking: refused as well
            refused += 1
    assert refused == faults
    assert pool.request("GET", url + "/about", headers=headers).status == 200
    return {"faults": faults, "refused": refused}


def check_wrong_tokens(faults, url):
    refused = 0
    for i in range(faults):
        os.environ["WRONG_TOKEN"] = f"{TOKEN}{i}"
        reward = HttpReward(url, NAMES, token_variable="WRONG_TOKEN")
        loop, _ = make_loop(make_config(policy=POLICY), reward=reward, prompts=Plan("", 0).prompts)
        before = weights(loop)
        try:
            loop.iterate()
        except RewardError as error:
            refused += "401" in str(error)
        assert torch.equal(weights(loop), before)
    assert refused == faults
    return {"faults": faults, "refused": refused}


def check_failure_rate(url):
    """Above the stated rate a run ends with a sentence."""
    reward = HttpReward(url, retries=0)

    class Broken(Reward):
        names = NAMES

        def score(self, videos, prompts):
            return reward.score(videos, [Prompt(p.text, {"fault": "nan"}) for p in prompts])

    config = make_config(policy=POLICY | {"max_failed_rewards": 0.5})
    loop, _ = make_loop(config, reward=Broken(), prompts=Plan("", 0).prompts)
    try:
        loop.iterate()
    except RewardFailure as error:
        return str(error)
    raise AssertionError("a run in which every reward failed went on")


def run(url, notes, faults, kinds=KINDS, slow_faults=None, tell=lambda kind, found: None):
    found = {}
    for kind in kinds:
        count = min(faults, slow_faults or faults) if kind in SLOW_KINDS else faults
        if kind == "1 GB":
            found[kind] = check_large_bodies(count, url)
        elif kind == "wrong token":
            found[kind] = check_wrong_tokens(count, url)
        else:
            found[kind] = check_kind(kind, count, url, notes)
        tell(kind, found[kind])
    return found


def main():
    parser = argparse.ArgumentParser(description="Plant faults in a real fleet while a model trains against it.")
    parser.add_argument("--faults", type=int, default=100, help="of each kind")
    parser.add_argument("--slow-faults", type=int, help="of kinds that cost a process each; default: as many")
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS)
    parser.add_argument("--port", type=int, default=8911)
    options = parser.parse_args()
    torch.set_num_threads(1)
    threading.excepthook = lambda details: None  # threads of the relay whose trainer hung up
    with running_fleet(options.port) as (url, notes):
        found = run(
            url,
            notes,
            options.faults,
            options.kinds,
            options.slow_faults,
            lambda kind, result: print(kind, json.dumps(result), flush=True),
        )
        print("above the rate:", check_failure_rate(url))
    print(f"{sum(f['faults'] for f in found.values())} faults of {len(found)} kinds: every run ended as the masked one")


if __name__ == "__main__":
    main()
