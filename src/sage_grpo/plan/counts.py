"""How often an iteration asks the network, from the settings alone."""

import math
from dataclasses import dataclass
from itertools import product

from sage_grpo.config import RecipeConfig
from sage_grpo.core.anchors import anchor_is_due
from sage_grpo.core.update import anchored_places
from sage_grpo.core.windows import Windows
from sage_grpo.training.drift_gauge import NOISE_LEVELS

ITERATIONS = 100  # that are counted


@dataclass(frozen=True)
class Counts:
    """Of one iteration on all replicas: videos times passes. Every branch of guidance is a pass of its own."""

    rollout: float
    anchor: float
    training: float  # forward passes that are remembered
    untrained: float  # forward passes of a branch without gradient, within training
    backward: float
    again: float  # recomputed forward passes
    gauge: float  # a share: it does not measure in every iteration
    samples: float

    @property
    def forward(self) -> float:
        return self.rollout + self.anchor + self.training + self.untrained + self.again + self.gauge + self.samples


def stochastic_steps(config: RecipeConfig) -> int:
    """Transitions that a rollout keeps."""
    return config.sampling.window_size


def rollout_passes(config: RecipeConfig, experts: int) -> float:
    """Videos times passes of a rollout: the mean of the run's own iterations, for windows move."""
    windows = Windows(config, config.parallel.replicas, experts)
    seen = range(min(config.run.iterations, ITERATIONS))
    return sum(sum(map(sum, windows.passes(i))) for i in seen) / len(seen)


def trained_videos(config: RecipeConfig) -> int:
    """Rows of a training pass over all videos that are selected, with those that fill up batches."""
    policy, world = config.policy, config.parallel.replicas
    if policy.select is None or 2 * policy.select >= policy.num_generations:
        return config.rollouts
    prompts = policy.prompts_per_iteration
    packs = prompts if config.sampling.window.per == "prompt" else world  # videos of one window share batches
    return packs * math.ceil(2 * policy.select * prompts / packs / policy.batch_size) * policy.batch_size


def anchor_steps(config: RecipeConfig) -> float:
    """Steps of a video at which the anchor is asked: not in the update that begins with its renewal."""
    policy, seen, asked = config.policy, range(min(config.run.iterations, ITERATIONS)), 0
    if config.kl.anchor == "none":
        return 0.0
    lengths = [len(range(part, config.trained_steps, policy.num_minibatches)) for part in range(policy.num_minibatches)]
    for i, epoch, (n, steps) in product(seen, range(policy.num_iterations), enumerate(lengths)):
        updates = (i * policy.num_iterations + epoch) * policy.num_minibatches + n
        if not anchor_is_due(config.kl, updates):
            asked += len(anchored_places(steps, config, i, epoch, n))
    return asked / len(seen)


def count(config: RecipeConfig, guided: bool, one_sided: bool = False, experts: int = 1) -> Counts:
    """`one_sided`: only one branch of guidance is trained. `experts` are asked in turn, by noise level."""
    branches = 2 if guided else 1
    trained = trained_videos(config) * config.trained_steps * config.policy.num_iterations
    both = branches if not one_sided else 1
    every, first = config.gauge.every, config.policy.batch_size * config.parallel.replicas  # it looks at one batch each
    gauge = branches * first * (stochastic_steps(config) + len(NOISE_LEVELS)) / every if every else 0.0
    run = config.run
    sampled = run.samples * run.samples_each * config.parallel.replicas  # each replica makes them all
    samples = branches * sampled * config.sampling.steps / run.sample_every if run.sample_every else 0.0
    return Counts(
        rollout=rollout_passes(config, experts) * branches,
        anchor=trained_videos(config) * anchor_steps(config) * branches,
        training=trained * both,
        untrained=trained * (branches - both),
        backward=trained * both,
        again=trained * both if config.tuning.gradient_checkpointing else 0,
        gauge=gauge,
        samples=samples,
    )
