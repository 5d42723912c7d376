"""Counts of network evaluations in rollout, anchor and training, from the settings alone."""

import math
from itertools import product

from sage_grpo.config import RecipeConfig
from sage_grpo.core.anchor import evaluated_places, is_evaluated
from sage_grpo.core.objectives import chosen_objective, needs_old_velocity
from sage_grpo.core.windows import Windows

ITERATIONS = 100  # that are counted


def rollout_passes(config: RecipeConfig, experts: int = 1) -> float:
    """Return the forward passes of a rollout, counted in videos: the sum of their batch sizes over all replicas.

    Windows move, so it is the mean over the run's first iterations (`ITERATIONS` at most). A pass of guidance with two
    branches counts as one.
    """
    windows = Windows(config, config.parallel.replicas, experts)
    seen = range(min(config.run.iterations, ITERATIONS))
    return sum(sum(map(sum, windows.passes(i))) for i in seen) / len(seen)


def trained_videos(config: RecipeConfig) -> int:
    """Return the number of videos in one training pass over a rollout, on all replicas.

    Those that fill up batches are included.
    """
    policy, world = config.policy, config.parallel.replicas
    if policy.select is None or 2 * policy.select >= policy.num_generations:
        return config.rollouts
    prompts = policy.prompts_per_iteration
    packs = prompts if config.sampling.window.per == "prompt" else world  # videos of one window share batches
    return packs * math.ceil(2 * policy.select * prompts / packs / policy.batch_size) * policy.batch_size


def anchor_steps(config: RecipeConfig) -> float:
    """Return the mean number of steps per video and iteration at which the anchor is evaluated.

    An update that begins with a fresh copy of the policy has none.
    """
    policy, seen, asked = config.policy, range(min(config.run.iterations, ITERATIONS)), 0
    lengths = [len(range(part, config.trained_steps, policy.num_minibatches)) for part in range(policy.num_minibatches)]
    for i, epoch, (n, steps) in product(seen, range(policy.num_iterations), enumerate(lengths)):
        updates = (i * policy.num_iterations + epoch) * policy.num_minibatches + n
        if is_evaluated(config.kl, updates):
            asked += len(evaluated_places(steps, config, i, epoch, n))
    return asked / len(seen)


def old_steps(config: RecipeConfig) -> int:
    """Return the number of points per video at which the old policy is evaluated before training.

    It is 0 for steps of a rollout, which have its velocity.
    """
    return (config.policy.points or 0) if needs_old_velocity(chosen_objective(config), config) else 0


def forward_passes(config: RecipeConfig, branches: int = 1) -> float:
    """Return the forward passes of an iteration, counted in videos: rollout, anchor, old policy and training.

    A backward pass counts as two, and recomputation is left out. With guidance, `branches` is 2: each evaluation then
    counts twice, except at points of renoised videos.
    """
    trained = trained_videos(config) * config.trained_steps * config.policy.num_iterations
    references = trained_videos(config) * (anchor_steps(config) + old_steps(config))
    at_points = 1 if chosen_objective(config).renoised else branches
    return branches * rollout_passes(config) + at_points * (references + 3 * trained)
