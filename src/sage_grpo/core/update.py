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
from sage_grpo.math.gaussian import kl, sampled_kl
from sage_grpo.math.loss import dual_kl, sage_loss
from sage_grpo.math.objectives import Ask, Loss, Objective


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


def asked(
    path: Trajectory, step: int, v: Tensor, advantage: Tensor, anchor: Tensor | None = None, *, fresh: bool = False
) -> Ask:
    """Return the inputs of the objective at a point where the policy's velocity is `v`."""
    point = path.points[step]
    old = v.detach() if fresh or point.velocity is None else point.velocity
    return Ask(v, old, anchor, point.sigma, point.noise, path.x0, advantage, point.b, point.k, point.scale)


def gradient_size(loss: Loss, v: Tensor) -> Tensor:
    """Return the norm of the loss's gradient by the velocity, per video (B,) (Eq. 36): what the equalizer balances."""
    (force,) = torch.autograd.grad(loss.value.sum(), v, retain_graph=True)
    size: Tensor = force.flatten(1).norm(dim=1)
    return size


@dataclass(frozen=True)
class Terms:
    """What one timestep of a batch contributes, a number a sample."""

    policy: Loss
    position: Tensor
    previous: Tensor
    penalty: Tensor


def terms(ask: Ask, objective: Objective, config: AlgorithmConfig) -> Terms:
    """The objective's loss, and the trust region that holds any of them."""
    reduction, trust, v, k = config.policy.reduction, config.kl, ask.velocity, ask.k
    previous = kl(v, ask.old, k, reduction)
    if trust.velocity == "sampled":
        previous = ask.scale * sampled_kl(v, ask.old, ask.noise, k, reduction)
    # the anchor is asked at a share of the steps only: 1/share makes up for the others
    position = torch.zeros_like(previous) if ask.anchor is None else kl(v, ask.anchor, k, reduction) / trust.share
    penalty = dual_kl(position, previous, trust.beta_position, trust.beta_velocity)
    return Terms(objective.loss(ask), position, previous, penalty)


def update(
    model: VideoModel,
    batches: Sequence[Batch],
    objective: Objective,
    step_weights: Tensor,
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
    size, steps = config.policy.replay_timesteps, len(batches[0].steps)
    items = [(range(i, min(i + size, steps)), batch) for i in range(0, steps, size) for batch in batches]
    references = list[dict[int, Tensor]]()
    with torch.no_grad(), bank.using(ANCHOR) if anchored else nullcontext():
        for places, batch in items:
            at = [batch.steps[place] for place in places if place in anchored]
            references.append(dict(zip(at, velocities(model, batch.trajectory, at), strict=True)) if at else {})

    optimizer.zero_grad(set_to_none=True)
    scale = comm.world / (samples * steps)  # ranks average their gradients
    # on the device until the end: the host must not wait between passes
    totals = batches[0].advantage.new_zeros(len(step_weights), len(COLUMNS), dtype=torch.float64)
    for number, ((places, batch), reference) in enumerate(zip(items, references, strict=True), 1):
        losses, leaves = [], []
        chunk = [batch.steps[place] for place in places]
        answers = velocities(model, batch.trajectory, chunk)
        for step, answer in zip(chunk, answers, strict=True):
            v = answer.detach().requires_grad_()  # the loss knows velocities alone: its gradient by them comes first
            ask = asked(batch.trajectory, step, v, batch.advantage, reference.get(step), fresh=fresh)
            t = terms(ask, objective, config)
            loss = sage_loss(t.policy.value, step_weights[step].item(), kl_weight, t.penalty)
            losses.append((loss * batch.weight).sum())
            leaves.append(v)
            # the gradient is that before weighing; times step_weights[step] it is what the network gets
            logs, ones, force = t.policy.log_ratio, torch.ones_like(loss), gradient_size(t.policy, v)
            told = (t.policy.held, t.position, t.previous, t.penalty, force)
            seen = (ones, loss, logs.double().exp(), logs.square(), *told)
            row = torch.stack([(column.detach().double() * batch.weight).sum() for column in seen])
            totals[step] += row
        (scale * torch.stack(losses).sum()).backward()  # type: ignore[no-untyped-call]
        comm.set_last_backward(model.module, last=number == len(items))
        torch.autograd.backward(answers, [leaf.grad for leaf in leaves])

    norm = comm.clip_grad_norm((p for p in model.module.parameters() if p.requires_grad), config.policy.max_grad_norm)
    totals = comm.mean(totals).cpu()
    stepped = bool(totals.isfinite().all() and norm.isfinite())
    if stepped:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    seen_at = totals[:, 0].nonzero().flatten()
    means = (totals / totals[:, :1])[seen_at].T.tolist()
    return UpdateResult(stepped, norm.item(), tuple(seen_at.tolist()), dict(zip(COLUMNS, means, strict=True)))
