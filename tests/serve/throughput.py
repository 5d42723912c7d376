"""How fast a fleet is, side by side with the same scorers in-process: `python -m serve.throughput --rounds 5`.

Rate: 64 short videos, scored by two processes that score for themselves, and by a fleet of two replicas asked by one
trainer. Overlap: the lab's model makes videos on one core while a fleet scores; hidden is what of the scoring's own
time does not lengthen the rollout.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import time
from contextlib import contextmanager

import torch

from sage_grpo.config import FleetConfig, RewardConfig, load_recipe
from sage_grpo.core.loop import Loop
from sage_grpo.core.protocols import Prompt
from sage_grpo.core.reward import Reward
from sage_grpo.rewards.remote.http import HttpReward
from sage_grpo.training import build
from sage_grpo.weights.optimizers import build_optimizer

SCORER = "motion"
COUNT, SHAPE = 64, (16, 128, 128, 3)
BATCHES = 16  # micro-batches of the overlap


def clips(count=COUNT, shape=SHAPE):
    """Smooth pictures that move: something to score."""
    generator = torch.Generator().manual_seed(0)
    frames, height, width, _ = shape
    wide = torch.rand(count, 3, 8, 16, generator=generator)
    ground = torch.nn.functional.interpolate(wide, (height, 2 * width), mode="bicubic").clamp(0, 1)
    moved = [ground[..., 2 * t : 2 * t + width] for t in range(frames)]
    return (torch.stack(moved, 1).permute(0, 1, 3, 4, 2) * 255).to(torch.uint8).contiguous()


def scorer(kind=SCORER, **options):
    return build.build_reward(RewardConfig(type=kind, options=options))


def work_alone(share, start, ended):
    torch.set_num_threads(1)
    reward, videos = scorer(), clips()[share]
    prompts = [Prompt("")] * len(videos)
    reward.score(videos[:2], prompts[:2])
    ended.put(0.0)
    while start.get():
        begun = time.monotonic()
        reward.score(videos, prompts)
        ended.put(time.monotonic() - begun)


@contextmanager
def two_processes():
    """A function that scores all videos in two processes and returns the seconds of the slower one."""
    context = multiprocessing.get_context("spawn")
    queues = [(context.Queue(), context.Queue()) for _ in range(2)]
    shares = (slice(0, COUNT // 2), slice(COUNT // 2, COUNT))
    processes = [context.Process(target=work_alone, args=(s, *q)) for s, q in zip(shares, queues, strict=True)]
    [p.start() for p in processes]
    [ended.get() for _, ended in queues]

    def score():
        [start.put(True) for start, _ in queues]
        return max(ended.get() for _, ended in queues)

    try:
        yield score
    finally:
        [start.put(False) for start, _ in queues]
        [p.join() for p in processes]


@contextmanager
def fleet_of(replicas, port, kind=SCORER, **options):
    from sage_grpo.serve import fleet

    os.environ.setdefault("SAGE_GRPO_TOKEN", "only for this test")
    entry = {"type": kind, "options": options, "replicas": replicas, "cpus": 1, "batch": 8}
    url = fleet.start(FleetConfig(scorers=[entry], port=port))
    try:
        yield url
    finally:
        fleet.stop()


def compare_rates(rounds, port):
    videos, prompts = clips(), [Prompt("")] * COUNT
    alone, fleet = [], []
    with two_processes() as score_alone, fleet_of(2, port) as url:
        reward = HttpReward(url)
        for _ in range(2):
            reward.score(videos, prompts)  # both replicas are warm
        for _ in range(rounds):  # in turn: what else the machine does meets both
            alone.append(score_alone())
            begun = time.monotonic()
            scores = reward.score(videos, prompts)
            fleet.append(time.monotonic() - begun)
            assert scores.valid.any()
    ratios = sorted(a / f for a, f in zip(alone, fleet, strict=True))
    return {
        "alone": COUNT / statistics.median(alone),
        "fleet": COUNT / statistics.median(fleet),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
    }


def lab_loop(reward):
    settings = {"prompts_per_iteration": BATCHES, "num_generations": 4, "batch_size": 4}
    config = load_recipe({"policy": settings, "sampling": {"steps": 20}})
    model = build.build_model(config)
    return Loop(model, reward, build.build_prompts(config), config, build_optimizer(model.module, config.optimizer))


class Nothing(Reward):
    names = ("nothing",)

    def score(self, videos, prompts):
        raise AssertionError("nobody asks")


def timed(function, *arguments):
    begun = time.monotonic()
    found = function(*arguments)
    return time.monotonic() - begun, found


def measure_overlap(rounds, port):
    """Rollout alone, scoring alone and both, in turn."""
    rollout, scoring, both = [], [], []
    with fleet_of(1, port) as url:
        reward = HttpReward(url)
        loop, bare = lab_loop(reward), lab_loop(Nothing())
        loop.score(loop.rollout())
        for _ in range(rounds):
            seconds, made = timed(bare.rollout, bare.table)
            rollout.append(seconds)
            parts = [(v.frames, made.prompts[i * 4 : i * 4 + 4]) for i, v in enumerate(made.videos)]
            scoring.append(timed(lambda parts=parts: [reward.score(*part) for part in parts])[0])
            both.append(timed(lambda: loop.score(loop.rollout()))[0])
    hidden = sorted(1 - (b - r) / s for r, s, b in zip(rollout, scoring, both, strict=True))
    return {
        "rollout": statistics.median(rollout),
        "scoring": statistics.median(scoring),
        "both": statistics.median(both),
        "hidden": statistics.median(hidden),
        "hidden of each": hidden,
    }


def main():
    parser = argparse.ArgumentParser(description="Compare a fleet with the same scorers in-process.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--port", type=int, default=8931)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps({"rates": compare_rates(options.rounds, options.port)}), flush=True)
    print(json.dumps({"overlap": measure_overlap(options.rounds, options.port + 1)}), flush=True)


if __name__ == "__main__":
    main()
