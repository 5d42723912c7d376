"""Replay a rollout under the current weights: velocities → objective → backward → optimizer."""

import math
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from sage_grpo.config import AlgorithmConfig
from sage_grpo.core.anchors import ANCHOR
from sage_grpo.core.protocols import Comm, VideoModel, WeightsBank
from sage_grpo.core.rollout import Trajectory, keyed_rng, velocity_at
from sage_grpo.math.gaussian import kl, log_ratio, pull
from sage_grpo.math.objective import clipped, dual_kl, sage_loss, surrogate, velocity_gradient


@dataclass(frozen=True)
class Batch:
    """A trajectory with its advantages, and its steps that an update trains; a sample with weight 0 was masked."""

    trajectory: Trajectory
    advantage: Tensor
    weight: Tensor
    steps: Sequence[int]


@dataclass(frozen=True)
class UpdateResult:
    """What one optimizer update saw, averaged over samples; `per_step` has one row a trained timestep."""

    stepped: bool
    grad_norm: float
    steps: tuple[int, ...]
    per_step: dict[str, list[float]]

    def mean(self, name: str) -> float:
        return sum(self.per_step[name]) / len(self.steps)


COLUMNS = ("weight", "loss", "ratio", "log_ratio_sq", "clip_frac", "kl_anchor", "kl_previous", "kl", "gradient")


def trained_steps(steps: Sequence[int], config: AlgorithmConfig, *key: int | str) -> list[list[int]]:
    """Which timesteps one pass trains on, in which order, split into its optimizer updates."""
    rng, policy = keyed_rng(config.seed, *key, "timesteps"), config.policy
    order = rng.permutation(len(steps))[: config.trained_steps].tolist()
    order = order if policy.permute_timesteps else sorted(order)
    return [[steps[i] for i in order[part :: policy.num_minibatches]] for part in range(policy.num_minibatches)]


def anchored_places(steps: int, config: AlgorithmConfig, *key: int | str) -> list[int]:
    """At which of an update's steps the anchor is asked: `kl.share` of them on average, rounded at random."""
    rng = keyed_rng(config.seed, *key, "anchor")
    count = math.floor(config.kl.share * steps + rng.random())
    return sorted(rng.permutation(steps)[:count].tolist())


def velocities(model: VideoModel, trajectory: Trajectory, steps: Sequence[int]) -> list[Tensor]:
    """The network at several points of a trajectory, in one forward pass."""
    points = [trajectory.points[step] for step in steps]
    if len(points) == 1:
        return [velocity_at(model, points[0].x, points[0].sigma, trajectory.condition)]
    x = torch.cat([point.x for point in points])
    sigma = torch.tensor([point.sigma for point in points], dtype=torch.float64).to(x)
    condition = {name: torch.cat([value] * len(points)) for name, value in trajectory.condition.items()}
    at = sigma.repeat_interleave(len(trajectory.x0))
    return list(torch.split(model.velocity(x, at, condition), len(trajectory.x0)))


@dataclass(frozen=True)
class Terms:
    """What one timestep of a batch contributes, a number a sample."""

    logs: Tensor
    surrogate: Tensor
    position: Tensor
    previous: Tensor
    penalty: Tensor


def terms(
    v: Tensor, old: Tensor, noise: Tensor, anchor: Tensor | None, advantage: Tensor, k: float, config: AlgorithmConfig
) -> Terms:
    policy, trust = config.policy, config.kl
    logs = log_ratio(v, old, noise, k, policy.reduction)
    previous = kl(v, old, k, policy.reduction)
    # the anchor is asked at a share of the steps only: 1/share makes up for the others
    position = torch.zeros_like(previous) if anchor is None else kl(v, anchor, k, policy.reduction) / trust.share
    penalty = dual_kl(position, previous, trust.beta_position, trust.beta_velocity)
    return Terms(logs, surrogate(logs, advantage, policy.clip), position, previous, penalty)


def update(
    model: VideoModel,
    batches: Sequence[Batch],
    equalizer: Tensor,
    kl_weight: float,
    config: AlgorithmConfig,
    *,
    optimizer: torch.optim.Optimizer,
    bank: WeightsBank,
    comm: Comm,
    samples: int,
    anchored: Collection[int],
    fresh: bool = False,
) -> UpdateResult:
    """One optimizer update over all batches; `samples` counts those of weight 1 on all ranks.

    Each batch is trained at its own steps, as many as any other. The loss is a mean over samples and timesteps, so
    neither masks nor batching change its scale. If the loss or the gradient is not finite on any rank, no rank steps.
    `anchored` are the places among a batch's steps at which the anchor is asked. `fresh` weights are those of the
    rollout: the old velocity is then the network's own, and its ratio 1, even where replay rounds differently.
    """
    policy, size, steps = config.policy, config.policy.replay_timesteps, len(batches[0].steps)
    items = [(range(i, min(i + size, steps)), batch) for i in range(0, steps, size) for batch in batches]
    references = list[dict[int, Tensor]]()
    with torch.no_grad(), bank.using(ANCHOR) if anchored else nullcontext():
        for places, batch in items:
            at = [batch.steps[place] for place in places if place in anchored]
            references.append(dict(zip(at, velocities(model, batch.trajectory, at), strict=True)) if at else {})

    optimizer.zero_grad(set_to_none=True)
    scale = comm.world / (samples * steps)  # ranks average their gradients
    totals = torch.zeros(len(equalizer), len(COLUMNS), dtype=torch.float64)
    for (places, batch), reference in zip(items, references, strict=True):
        losses = []
        path, chunk = batch.trajectory, [batch.steps[place] for place in places]
        for step, v in zip(chunk, velocities(model, path, chunk), strict=True):
            k, point = path.table.k[step].item(), path.points[step]
            old = v.detach() if fresh else point.velocity
            t = terms(v, old, point.noise, reference.get(step), batch.advantage, k, config)
            loss = sage_loss(t.surrogate, equalizer[step].item(), kl_weight, t.penalty)
            losses.append((loss * batch.weight).sum())
            held = clipped(t.logs, batch.advantage, policy.clip)
            with torch.no_grad():  # before equalizing; times equalizer[step] it is what the network gets
                force = pull(v, old, point.noise, k, policy.reduction)
                gradient = velocity_gradient(t.logs, batch.advantage, policy.clip, force)
            ones, ratio = torch.ones_like(loss), t.logs.double().exp()
            seen = (ones, loss, ratio, t.logs.square(), held, t.position, t.previous, t.penalty, gradient)
            row = torch.stack([(column.detach().double() * batch.weight).sum() for column in seen])
            totals[step] += row.cpu()
        (scale * torch.stack(losses).sum()).backward()  # type: ignore[no-untyped-call]

    norm = comm.clip_grad_norm((p for p in model.module.parameters() if p.requires_grad), policy.max_grad_norm)
    totals = comm.mean(totals)
    stepped = bool(totals.isfinite().all() and norm.isfinite())
    if stepped:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    seen_at = totals[:, 0].nonzero().flatten()
    means = (totals / totals[:, :1])[seen_at].T.tolist()
    return UpdateResult(stepped, norm.item(), tuple(seen_at.tolist()), dict(zip(COLUMNS, means, strict=True)))
