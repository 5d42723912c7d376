"""How often an iteration asks the network, from the settings alone."""

import math
from dataclasses import dataclass

from sage_grpo.config import RecipeConfig
from sage_grpo.core.passes import anchor_steps, rollout_passes, trained_videos
from sage_grpo.training.drift_gauge import NOISE_LEVELS


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


def count(config: RecipeConfig, guided: bool, one_sided: bool = False, experts: int = 1) -> Counts:
    """`one_sided`: only one branch of guidance is trained. `experts` are asked in turn, by noise level."""
    branches = 2 if guided else 1
    trained = trained_videos(config) * config.trained_steps * config.policy.num_iterations
    both = branches if not one_sided else 1
    every, first = config.gauge.every, config.policy.batch_size * config.parallel.replicas  # it looks at one batch each
    gauge = branches * first * (stochastic_steps(config) + len(NOISE_LEVELS)) / every if every else 0.0
    run = config.run
    replicas = config.parallel.replicas
    sampled = math.ceil(run.samples * run.samples_each / replicas) * replicas  # dealt out, as many to each
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
