"""The number of network passes in an iteration, by purpose, from the settings alone."""

import math
from dataclasses import dataclass

from sage_grpo.config import RecipeConfig
from sage_grpo.core.passes import anchor_steps, old_steps, outside_points, rollout_passes, trained_videos
from sage_grpo.training.drift_gauge import NOISE_LEVELS


@dataclass(frozen=True)
class Counts:
    """The network passes of one iteration on all replicas, by purpose.

    A pass of one video counts as 1 for each branch of guidance.
    """

    rollout: float
    anchor: float
    old: float  # the old policy at points that are not the rollout's own
    training: float  # forward passes that are remembered
    untrained: float  # forward passes of a branch without gradient, within training
    backward: float
    again: float  # recomputed forward passes
    gauge: float  # a share: it does not measure in every iteration
    samples: float

    @property
    def forward(self) -> float:
        return float(sum(vars(self).values())) - self.backward


def stochastic_steps(config: RecipeConfig) -> int:
    """Return the number of steps per video that a rollout keeps for training.

    It is 0 if the recipe trains on renoised videos (`policy.points`).
    """
    return 0 if config.policy.points else config.sampling.window_size


def count(config: RecipeConfig, guided: bool, one_sided: bool = False, experts: int = 1) -> Counts:
    """Return the network passes of an iteration, by purpose.

    Args:
        config: The recipe.
        guided: Whether guidance evaluates a second branch.
        one_sided: Whether only one branch of guidance gets a gradient.
        experts: Number of networks, of which each noise level uses one.
    """
    branches = 2 if guided else 1
    asked = 1 if config.policy.points else branches  # renoised videos are trained without guidance
    outside = outside_points(config)
    trained = trained_videos(config) * config.trained_steps * config.policy.num_iterations + outside
    both = asked if not one_sided else 1
    every, first = config.gauge.every, config.policy.batch_size * config.parallel.replicas  # it looks at one batch each
    looked_at = (stochastic_steps(config) or len(NOISE_LEVELS)) + len(NOISE_LEVELS)
    gauge = branches * first * looked_at / every if every else 0.0
    run = config.run
    replicas = config.parallel.replicas
    sampled = math.ceil(run.samples * run.samples_each / replicas) * replicas  # dealt out, as many to each
    steps = run.sample_steps or config.sampling.steps
    samples = branches * sampled * steps / run.sample_every if run.sample_every else 0.0
    return Counts(
        rollout=rollout_passes(config, experts) * branches,
        anchor=(trained_videos(config) * anchor_steps(config) + outside) * asked,
        old=trained_videos(config) * old_steps(config) * asked,
        training=trained * both,
        untrained=trained * (asked - both),
        backward=trained * both,
        again=trained * both if config.tuning.gradient_checkpointing else 0,
        gauge=gauge,
        samples=samples,
    )
