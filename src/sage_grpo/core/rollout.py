"""Rollouts: videos sampled along a kernel's table, and the points at which the policy is trained on them."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sage_grpo.core.protocols import Condition, Prompt
from sage_grpo.core.video_model import VideoModel
from sage_grpo.math.kernels import KernelTable

Key = tuple[int | str, ...]
SAME_SIGMA = 1e-6  # noise levels that differ by less are one level, rounded in two precisions


def keyed_rng(*key: int | str) -> np.random.Generator:
    """Return a random generator that is determined by its key: equal on every machine and rank, and after a resume."""
    digest = blake2b(repr(key).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


def keyed_noise(shape: tuple[int, ...], keys: Sequence[Key], device: torch.device) -> Tensor:
    """Draw standard normal noise (B, *shape) in float32, from B keys, one per sample."""
    draws = np.stack([keyed_rng(*key).standard_normal(shape, dtype=np.float32) for key in keys])
    return torch.from_numpy(draws).to(device)


@dataclass(frozen=True)
class Point:
    """A point on the trajectories of a batch of videos, at which the policy is trained.

    A rollout has one point for each stochastic step: the state that the step began from, its velocity and its noise.
    Objectives on renoised videos make points of their own (`core.renoise`).
    """

    x: Tensor
    """Latents (B, …) before the step, or of the renoised videos."""
    sigma: float
    """Noise level of `x`."""
    velocity: Tensor | None
    """Velocity (B, …) of the old policy; None if it was not evaluated, because the trained policy is itself the old
    one."""
    noise: Tensor
    r"""Noise (B, …): $\varepsilon$ of the step, or $z$ of the renoised videos."""
    b: float
    """Weight of the velocity in the step; 0 for renoised videos, which have no step."""
    k: float
    r"""$k = b/s$, with the size $s$ of the step's noise: all that log-ratio and KL need. $\sqrt2$ for renoised
    videos."""
    scale: float = 1.0
    """Factor of the log-ratio: 1, or $2s^2$ if the kernel's log-likelihood is not divided by $2s^2$."""

    @property
    def stored(self) -> Tensor:
        """The old policy's velocity (B, …). Raises RuntimeError if it was not evaluated at this point."""
        if self.velocity is None:
            raise RuntimeError("the old policy was not evaluated at this point")
        return self.velocity

    def rows(self, rows: list[int]) -> "Point":
        """Return the point with only some videos of the batch, given by their indices."""
        velocity = None if self.velocity is None else self.velocity[rows]
        return replace(self, x=self.x[rows], velocity=velocity, noise=self.noise[rows])

    @staticmethod
    def concatenate(points: Sequence["Point"]) -> "Point":
        """Concatenate the points of several batches at one noise level into one point."""
        known = [point.velocity for point in points if point.velocity is not None]
        velocity = torch.cat(known) if known else None
        x, noise = torch.cat([point.x for point in points]), torch.cat([point.noise for point in points])
        return replace(points[0], x=x, velocity=velocity, noise=noise)


@dataclass(frozen=True)
class Trajectory:
    """A batch of rollouts along one kernel table, with the points at which the policy is trained."""

    table: KernelTable
    condition: Condition
    points: dict[int, Point]
    """The trained points by index of their step in the table, or of their noise level if the videos are renoised."""
    x0: Tensor
    """The clean latents (B, …) at the end of the rollout."""
    forward_settings: Mapping[str, str]
    """Settings that the forward passes depended on besides their inputs, by name, to compare with those of a replay."""


def velocity_at(model: VideoModel, x: Tensor, sigma: float, condition: Condition) -> Tensor:
    """Return the velocity (B, …) of latents `x` (B, …) at one noise level `sigma`.

    Rollout, replay and reference policies all evaluate the network through this function. Below `model.min_sigma` the
    network computes without its adapters.
    """
    with model.without_adapters() if sigma < model.min_sigma - SAME_SIGMA else nullcontext():
        return model.velocity(x, x.new_full((len(x),), sigma), condition)


def velocities(model: VideoModel, trajectory: Trajectory, steps: Sequence[int]) -> list[Tensor]:
    """Return the velocities at several points of a trajectory: one tensor (B, …) for each of `steps`.

    All points are evaluated in one forward pass.
    """
    points = [trajectory.points[step] for step in steps]
    if len(points) == 1:
        return [velocity_at(model, points[0].x, points[0].sigma, trajectory.condition)]
    x = torch.cat([point.x for point in points])
    sigma = torch.tensor([point.sigma for point in points], dtype=torch.float64).to(x)
    condition = {name: torch.cat([value] * len(points)) for name, value in trajectory.condition.items()}
    at = sigma.repeat_interleave(len(trajectory.x0))
    return list(torch.split(model.velocity(x, at, condition), len(trajectory.x0)))


def forward_settings(model: VideoModel, x: Tensor) -> dict[str, str]:
    """Return the settings by name that a forward pass of latents `x` (B, …) depends on besides its inputs.

    They must be equal in rollout and replay.
    """
    weights, kind = next(model.module.parameters()), x.device.type
    autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    return {
        "batch shape": str(tuple(x.shape)),
        "dtype": f"{x.dtype}, weights {weights.dtype}, autocast {autocast}",
        "mode": "train" if model.module.training else "eval",
        "guidance_scale": str(model.guidance_scale),
        "branches": "together" if model.branches_together else "one by one",
        "negative_prompt": model.negative_prompt,
        "autocast_dtype": str(model.autocast_dtype),
    }


class State(NamedTuple):
    """The state of a batch of videos between two sampling steps."""

    x: Tensor
    """The noisy latents (B, …)."""
    clean: Tensor
    """The network's estimate of the clean latents (B, …) at the step before; before the first step, the initial noise
    as a placeholder."""


def walk(
    model: VideoModel, state: State, condition: Condition, table: KernelTable, steps: range, samples: Sequence[Key]
) -> tuple[State, dict[int, Point]]:
    r"""Sample along some steps of a table, $x' = a\,x + b\,v + e\,\hat x_0^- + s\,\varepsilon$, in float32.

    Args:
        model: Evaluated once per step.
        state: The state of the batch before the first of `steps`.
        condition: The network's inputs for the batch, besides latents and noise levels.
        table: Has the coefficients $a$, $b$, $e$ and $s$ of each step.
        steps: The steps to take, as indices into the table.
        samples: Keys of the noise $\varepsilon$, one per video.

    Returns:
        The state after the last step, and a `Point` for each stochastic step, by index of the step.
    """
    (x, clean), points = state, {}
    for t in steps:
        columns = (table.sigma, table.a, table.b, table.e, table.s)
        sigma, a, b, e, s = (column[t].item() for column in columns)
        v = velocity_at(model, x, sigma, condition)
        following = a * x + b * v.float() + e * clean
        if s > 0:
            noise = keyed_noise(tuple(x.shape[1:]), [(*key, t) for key in samples], x.device)
            points[t] = Point(x, sigma, v, noise, b, table.k[t].item(), table.scale[t].item())
            following = following + s * noise
        x, clean = following, x - sigma * v.float()
    return State(x, clean), points


class Prefixes:
    """A cache of sampling states at the first stochastic step, so that a group computes earlier steps only once.

    Before its first stochastic step, a rollout follows the ODE. Rollouts of a prompt that begin with the same noise
    share this prefix, and each process computes it once. The states of the last batch stay in the cache, because a
    group may span several batches.
    """

    def __init__(self) -> None:
        self.held = dict[Key, State]()

    def reach(
        self, model: VideoModel, x: Tensor, condition: Condition, table: KernelTable, keys: Sequence[Key]
    ) -> State:
        """Return the states of a batch at its first stochastic step.

        Args:
            model: Evaluated for each key that is not in the cache.
            x: Initial noise (B, …).
            condition: The network's inputs for the batch, besides latents and noise levels.
            table: The kernel table; the first `table.prefix` steps are taken.
            keys: Keys of the initial noise, one per video.
        """
        new = {key: row for row, key in enumerate(keys) if key not in self.held}
        if new:
            rows = list(new.values())  # plain numbers: a condition may have parts on the host
            once = {name: value[rows] for name, value in condition.items()}
            states, _ = walk(model, State(x[rows], x[rows]), once, table, range(table.prefix), ())
            self.held |= {key: State(*row) for key, row in zip(new, zip(*states, strict=True), strict=True)}
        self.held = {key: self.held[key] for key in keys}
        return State(*(torch.stack(rows) for rows in zip(*(self.held[key] for key in keys), strict=True)))


@torch.no_grad()
def sample(
    model: VideoModel,
    prompts: Sequence[Prompt],
    table: KernelTable,
    initial: Sequence[Key],
    samples: Sequence[Key],
    prefixes: Prefixes | None = None,
) -> Trajectory:
    """Sample a batch of videos along the whole table, and return their trajectory.

    Args:
        model: Evaluated, and not changed.
        prompts: One per video, all with latents of one shape.
        table: Table of a kernel, made by `kernel_table`.
        initial: Keys of the noise to start from, one per video.
        samples: Keys of the noise along the way, one per video.
        prefixes: A cache for videos that share prompt and initial noise: their common part is computed once.
    """
    shapes = {model.latent_shape(prompt) for prompt in prompts}
    if len(shapes) > 1:
        raise ValueError(f"prompts of one batch need one latent shape, got {sorted(shapes)}; use batch_size=1")
    device = next(model.module.parameters()).device
    condition = model.encode(prompts)
    x = keyed_noise(shapes.pop(), [(*key, "initial") for key in initial], device)
    state, first = State(x, x), table.prefix if prefixes else 0
    if prefixes and first:
        state = prefixes.reach(model, x, condition, table, initial)
    (x, _), points = walk(model, state, condition, table, range(first, len(table)), samples)
    return Trajectory(table, condition, points, x, forward_settings(model, x))
