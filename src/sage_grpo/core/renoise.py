"""Trained points of objectives that add fresh noise to finished videos, and the old policy's velocities there."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from sage_grpo.config import AlgorithmConfig
from sage_grpo.core.comm import Comm
from sage_grpo.core.rollout import Key, Point, Trajectory, forward_settings, keyed_noise, keyed_rng, velocity_at
from sage_grpo.core.video_model import VideoModel
from sage_grpo.core.windows import my_samples
from sage_grpo.math.objectives import Objective
from sage_grpo.math.schedule import shift_sigma

UNIT = math.sqrt(2.0)  # k of such a point: the KL of the trust region is then the squared distance of two velocities


def noise_levels(config: AlgorithmConfig, iteration: int) -> list[float]:
    """Draw the noise levels of an iteration's renoised points, `policy.points` in number, from high to low.

    The sampler's time is divided into as many equal parts, and one level is drawn from each part.
    """
    count = config.policy.points or 0
    rng = keyed_rng(config.seed, iteration, "noise levels")
    time = (torch.arange(count, dtype=torch.float64) + torch.from_numpy(rng.random(count))) / count
    drawn: list[float] = shift_sigma(time, config.sampling.shift).tolist()
    return drawn[::-1]  # from noise to data, as steps go


def renoise(model: VideoModel, path: Trajectory, levels: Sequence[float], keys: Sequence[Key]) -> Trajectory:
    r"""Return a trajectory of the same videos with points $(1-\sigma)x_0 + \sigma z$ in place of the rollout's steps.

    Args:
        model: Gives the settings with which the points will be evaluated.
        path: Trajectory of the videos $x_0$.
        levels: The noise level $\sigma$ of each point. Points are numbered in this order, and have no velocity yet.
        keys: Keys of the noise $z$, one per video.
    """
    x0, points = path.x0, {}
    for n, sigma in enumerate(levels):
        z = keyed_noise(tuple(x0.shape[1:]), [(*key, "noised", n) for key in keys], x0.device)
        points[n] = Point((1 - sigma) * x0 + sigma * z, sigma, None, z, b=0.0, k=UNIT)
    return replace(path, points=points, forward_settings=forward_settings(model, x0))


def renoise_rollouts(
    model: VideoModel,
    paths: Sequence[Trajectory],
    objective: Objective,
    config: AlgorithmConfig,
    comm: Comm,
    iteration: int,
) -> list[Trajectory]:
    """Return this rank's rollouts of an iteration with renoised points in place of the steps.

    The noise of each video is keyed by its global index. For a paired objective the noise is keyed by the group
    instead, so that both videos of a pair get the same noise.
    """
    size, group = config.policy.batch_size, config.policy.num_generations if objective.paired else 1
    levels = noise_levels(config, iteration)
    mine = my_samples(config.rollouts, comm.num_replicas, comm.replica)
    batches = (mine[i : i + size] for i in range(0, len(mine), size))
    keys: list[list[Key]] = [[(config.seed, iteration, i // group * group) for i in batch] for batch in batches]
    return [renoise(model, path, levels, its) for path, its in zip(paths, keys, strict=False)]


@torch.no_grad()
def with_old_velocities(model: VideoModel, path: Trajectory) -> Trajectory:
    """Return `path` with a velocity at every point, evaluated with the weights that the model has now."""
    points = {
        n: replace(point, velocity=velocity_at(model, point.x, point.sigma, path.condition))
        for n, point in path.points.items()
    }
    return replace(path, points=points)


@contextmanager
def unguided(model: VideoModel) -> Iterator[None]:
    """Evaluate the network without guidance inside the block."""
    scale = model.guidance_scale
    model.guidance_scale = 1.0
    try:
        yield
    finally:
        model.guidance_scale = scale
