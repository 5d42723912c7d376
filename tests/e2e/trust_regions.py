"""Does the reward rise, and what does each trust region do to the distance from the data at equal reward?

Runs every KL strategy of the paper over several seeds on the Gaussian model, whose manifold is known, and
compares each with `none` seed by seed. `python -m e2e.trust_regions --seeds 10` prints the table.
"""

import argparse
import json
import math
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy import stats

from gaussian_model import RANGE, GaussianModel
from sage_grpo.config import AlgorithmConfig, KLConfig, PolicyConfig, SamplingConfig
from sage_grpo.core.callback import Callback
from sage_grpo.core.loop import Loop
from sage_grpo.core.protocols import Prompt
from sage_grpo.core.reward import Reward
from sage_grpo.core.scores import Scores

ITERATIONS = 36
WEIGHT = 0.1
LEVELS = (1.0, 4.0)  # rewards above the start at which distances are compared
STRATEGIES = {
    "none": KLConfig(anchor="none", old_weight=0),
    "fixed": KLConfig(anchor="fixed", old_weight=0, warmup=0, high=WEIGHT),
    "step": KLConfig(anchor="none", old_weight=1, warmup=0, high=WEIGHT),
    "moving": KLConfig(anchor="moving", old_weight=0, warmup=0, high=WEIGHT),
    "dual": KLConfig(anchor="moving", old_weight=1, warmup=0, high=WEIGHT),
}


class Brightness(Reward):
    """Paid for every coordinate alike, on the manifold or off it: a reward that can be hacked."""

    names = ("brightness",)

    def score(self, videos, prompts):
        latents = (videos[..., 0].float() / 127.5 - 1) * RANGE
        values = latents.flatten(1).sum(1, keepdim=True) / math.sqrt(latents[0].numel())
        return Scores(values, torch.ones_like(values, dtype=torch.bool))


def same_prompts(start: int, count: int) -> list[Prompt]:
    return [Prompt(f"prompt {i}") for i in range(count)]


@dataclass(frozen=True)
class Run:
    reward: list[float]
    distance: list[float]


class Recorder(Callback):
    def __init__(self) -> None:
        self.reward, self.distance = [], []

    def on_rollout(self, loop, rollouts, scores, valid):
        self.reward.append(scores.mean().item())
        x0 = torch.cat([trajectory.x0 for trajectory in rollouts.trajectories])
        self.distance.append(loop.model.off_manifold(x0).mean().item())


def train(strategy: str, seed: int, iterations: int = ITERATIONS) -> Run:
    torch.set_num_threads(1)
    model, recorder = GaussianModel(seed=seed), Recorder()
    config = AlgorithmConfig(
        seed=seed,
        sampling=SamplingConfig(kernel="sage", eta=0.7, steps=8, shift=3.0),
        policy=PolicyConfig(num_generations=16, batch_size=64, num_iterations=2, clip=0.1),
        kl=STRATEGIES[strategy],
    )
    optimizer = torch.optim.AdamW(model.module.parameters(), lr=3e-3)
    Loop(model, Brightness(), same_prompts, config, optimizer, callbacks=[recorder]).run(iterations)
    return Run(recorder.reward, recorder.distance)


def distance_at(run: Run, gain: float) -> float | None:
    """The distance when the smoothed reward first passes its start by `gain`, or None if it never does."""
    smooth = np.ones(3) / 3
    reward = np.convolve(run.reward, smooth, "valid") - run.reward[0]
    distance = np.convolve(run.distance, smooth, "valid")
    above = np.flatnonzero(reward >= gain)
    if not len(above) or above[0] == 0:
        return None
    i = above[0]
    part = (gain - reward[i - 1]) / (reward[i] - reward[i - 1])
    return float(distance[i - 1] + part * (distance[i] - distance[i - 1]))


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % t-interval."""

    mean: float
    low: float
    high: float
    se: float
    n: int


def estimate(values: list[float]) -> Estimate | None:
    if len(values) < 3:
        return None
    mean, se = float(np.mean(values)), float(np.std(values, ddof=1) / math.sqrt(len(values)))
    half = float(stats.t.ppf(0.975, len(values) - 1)) * se
    return Estimate(mean, mean - half, mean + half, se, len(values))


@dataclass(frozen=True)
class Result:
    gain: dict[str, Estimate]  # reward at the end minus at the start
    effect: dict[tuple[str, str, float], Estimate | None]  # log distance ratio of two strategies, paired by seed
    seconds: float  # of computing, by each of the workers; what else the machine does is not counted


def measure(seeds: int, workers: int = 2, progress: bool = False) -> Result:
    before = computed_by_children()
    jobs = [(strategy, seed) for seed in range(seeds) for strategy in STRATEGIES]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        runs = dict(
            zip(
                jobs,
                track(pool.map(train, *zip(*jobs, strict=True)), total=len(jobs), disable=not progress),
                strict=True,
            )
        )
    gain = {
        s: estimate([np.mean(r.reward[-3:]) - r.reward[0] for r in (runs[s, seed] for seed in range(seeds))])
        for s in STRATEGIES
    }
    effect = {}
    for strategy, base in [*((s, "none") for s in STRATEGIES if s != "none"), ("dual", "moving")]:
        for level in LEVELS:
            pairs = [[distance_at(runs[s, seed], level) for s in (strategy, base)] for seed in range(seeds)]
            logs = [math.log(mine / theirs) for mine, theirs in pairs if mine is not None and theirs is not None]
            effect[strategy, base, level] = estimate(logs)
    return Result(gain, effect, (computed_by_children() - before) / workers)


def computed_by_children() -> float:
    times = os.times()
    return times.children_user + times.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    result = measure(arguments.seeds, arguments.workers, progress=not arguments.json)
    if arguments.json:
        effect = {f"{s}/{base}@{level}": e and vars(e) for (s, base, level), e in result.effect.items()}
        print(json.dumps({"gain": {s: vars(e) for s, e in result.gain.items()}, "effect": effect}, indent=1))
        return
    table = Table(title=f"{arguments.seeds} seeds, {ITERATIONS} iterations, λ = {WEIGHT}, {result.seconds:.0f} s")
    table.add_column("KL")
    table.add_column("reward gain")
    for level in LEVELS:
        table.add_column(f"distance at\nreward +{level:g} [95 %]")
    for strategy, base in [("none", ""), *dict.fromkeys((s, b) for s, b, _ in result.effect)]:
        gain = f"{result.gain[strategy].mean:.2f} ± {result.gain[strategy].se:.2f}" if base in ("", "none") else ""
        cells = [shown(result.effect[strategy, base, level]) for level in LEVELS] if base else ["", ""]
        table.add_row(f"{strategy} / {base}" if base else strategy, gain, *cells)
    Console().print(table)


def shown(effect: Estimate | None) -> str:
    if effect is None:
        return "not reached"
    ratio, low, high = (math.exp(x) for x in (effect.mean, effect.low, effect.high))
    return f"×{ratio:.2f} [{low:.2f}, {high:.2f}]"


if __name__ == "__main__":
    main()
