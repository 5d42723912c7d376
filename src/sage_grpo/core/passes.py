"""Counts of network evaluations in rollout, anchor and training, computed from the settings alone."""

import math
from itertools import product

from sage_grpo.config import RecipeConfig
from sage_grpo.core.anchor import evaluated_places, is_evaluated
from sage_grpo.core.objectives import chosen_objective, needs_old_velocity
from sage_grpo.core.windows import Windows

ITERATIONS = 100  # that are counted


def rollout_passes(config: RecipeConfig, experts: int = 1) -> float:
    """Return the forward passes of an iteration's rollout on all replicas. A pass with a batch of B videos counts as B.

    Windows move, so the count is a mean over the run's first iterations (`ITERATIONS` at most). The two branches of
    guidance count as one pass. `experts` is the number of networks that the model uses in turn.
    """
    windows = Windows(config, config.parallel.replicas, experts)
    seen = range(min(config.run.iterations, ITERATIONS))
    return sum(sum(map(sum, windows.passes(i))) for i in seen) / len(seen)


def trained_videos(config: RecipeConfig) -> int:
    """Return the number of videos in one training pass over a rollout, on all replicas.

    Videos that only fill up batches are included.
    """
    policy, world = config.policy, config.parallel.replicas
    if policy.select is None or 2 * policy.select >= policy.num_generations:
        return config.rollouts
    prompts = policy.prompts_per_iteration
    packs = prompts if config.sampling.window.per == "prompt" else world  # videos of one window share batches
    return packs * math.ceil(2 * policy.select * prompts / packs / policy.batch_size) * policy.batch_size


def anchor_steps(config: RecipeConfig) -> float:
    """Return at how many steps per video the anchor is evaluated in an iteration, as a mean over the first iterations.

    An update that begins with a fresh copy of the policy as its anchor counts as 0.
    """
    policy, seen, asked = config.policy, range(min(config.run.iterations, ITERATIONS)), 0
    lengths = [len(range(part, config.trained_steps, policy.num_minibatches)) for part in range(policy.num_minibatches)]
    for i, epoch, (n, steps) in product(seen, range(policy.num_iterations), enumerate(lengths)):
        updates = (i * policy.num_iterations + epoch) * policy.num_minibatches + n
        if is_evaluated(config.kl, updates):
            asked += len(evaluated_places(steps, config, i, epoch, n))
    return asked / len(seen)


def old_steps(config: RecipeConfig) -> int:
    """Return the number of points per video at which the old policy is evaluated before the first update.

    It is 0 if `needs_old_velocity` is false, as for the steps of a rollout, where the velocity is stored already.
    """
    return (config.policy.points or 0) if needs_old_velocity(chosen_objective(config), config) else 0


def outside_points(config: RecipeConfig) -> float:
    """Return the number of videos per iteration at which velocities outside the window are compared."""
    if not config.kl.outside_weight or config.policy.points:
        return 0.0
    return trained_videos(config) * config.kl.outside_share * config.policy.updates_per_rollout


def forward_passes(config: RecipeConfig, branches: int = 1) -> float:
    """Return the forward passes of an iteration: rollout, references and training. A batch of B counts as B.

    A backward pass counts as two forward passes; recomputation of activations does not count. With guidance, `branches`
    is 2: each evaluation then counts twice, except at renoised points, which are evaluated without guidance.
    """
    trained = trained_videos(config) * config.trained_steps * config.policy.num_iterations
    references = trained_videos(config) * (anchor_steps(config) + old_steps(config))
    at_points = 1 if chosen_objective(config).renoised else branches
    outside = branches * (1 + 3) * outside_points(config)
    return branches * rollout_passes(config) + at_points * (references + 3 * trained) + outside
