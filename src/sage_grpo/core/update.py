"""Replay a rollout under the current weights: velocities → objective → backward → optimizer."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from sage_grpo.config import AlgorithmConfig
from sage_grpo.core.anchors import ANCHOR
from sage_grpo.core.protocols import Comm, VideoModel, WeightsBank
from sage_grpo.core.rollout import Trajectory, keyed_rng, velocity_at
from sage_grpo.math.gaussian import kl, log_ratio, pull
from sage_grpo.math.kernels import Table
from sage_grpo.math.objective import clipped, dual_kl, sage_loss, surrogate, velocity_gradient


@dataclass(frozen=True)
class Batch:
    """A trajectory with its advantages; a sample with weight 0 was masked."""

    trajectory: Trajectory
    advantage: Tensor
    weight: Tensor


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


def _velocity(model: VideoModel, trajectory: Trajectory, step: int, table: Table) -> Tensor:
    x = trajectory.transitions[step].x
    return velocity_at(model, x, table.sigma[step].item(), trajectory.condition)


def update(
    model: VideoModel,
    batches: Sequence[Batch],
    steps: Sequence[int],
    table: Table,
    equalizer: Tensor,
    kl_weight: float,
    config: AlgorithmConfig,
    *,
    optimizer: torch.optim.Optimizer,
    bank: WeightsBank,
    comm: Comm,
    samples: int,
) -> UpdateResult:
    """One optimizer update over `steps` of all batches; `samples` counts those of weight 1 on all ranks.

    The loss is a mean over samples and timesteps, so neither masks nor batching change its scale. If the
    loss or the gradient is not finite on any rank, no rank steps.
    """
    policy, trust = config.policy, config.kl
    items = [(step, batch) for step in steps for batch in batches]
    anchored = trust.anchor != "none"
    with torch.no_grad(), bank.using(ANCHOR) if anchored else nullcontext():
        anchor = [_velocity(model, b.trajectory, t, table) if anchored else None for t, b in items]

    optimizer.zero_grad(set_to_none=True)
    scale = comm.world / (samples * len(steps))  # ranks average their gradients
    totals = torch.zeros(len(steps), len(COLUMNS), dtype=torch.float64)
    for (step, batch), v_anchor in zip(items, anchor, strict=True):
        k, taken = table.k[step].item(), batch.trajectory.transitions[step]
        v = _velocity(model, batch.trajectory, step, table)
        logs = log_ratio(v, taken.velocity, taken.noise, k, policy.reduction)
        previous = kl(v, taken.velocity, k, policy.reduction)
        position = torch.zeros_like(previous) if v_anchor is None else kl(v, v_anchor, k, policy.reduction)
        penalty = dual_kl(position, previous, trust.beta_position, trust.beta_velocity)
        policy_loss = surrogate(logs, batch.advantage, policy.clip)
        loss = sage_loss(policy_loss, equalizer[step].item(), kl_weight, penalty)
        (scale * (loss * batch.weight).sum()).backward()  # type: ignore[no-untyped-call]
        held = clipped(logs, batch.advantage, policy.clip)
        with torch.no_grad():  # before equalizing; times equalizer[step] it is what the network gets
            force = pull(v, taken.velocity, taken.noise, k, policy.reduction)
            gradient = velocity_gradient(logs, batch.advantage, policy.clip, force)
        ones = torch.ones_like(loss)
        seen = (ones, loss, logs.double().exp(), logs.square(), held, position, previous, penalty, gradient)
        row = torch.stack([(column.detach().double() * batch.weight).sum() for column in seen])
        totals[steps.index(step)] += row.cpu()

    norm = comm.clip_grad_norm((p for p in model.module.parameters() if p.requires_grad), policy.max_grad_norm)
    totals = comm.mean(totals)
    stepped = bool(totals.isfinite().all() and norm.isfinite())
    if stepped:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    means = (totals / totals[:, :1]).T.tolist()
    return UpdateResult(stepped, norm.item(), tuple(steps), dict(zip(COLUMNS, means, strict=True)))


class ReplayError(RuntimeError):
    """Replaying a rollout with unchanged weights did not give the rollout's own velocities."""


def check_replay(model: VideoModel, trajectory: Trajectory, table: Table) -> None:
    """The step-0 gate: with unchanged weights every log-ratio is exactly 0, or the run must not start."""

    def replay(step: int) -> Tensor:
        return _velocity(model, trajectory, step, table).detach()

    steps = list(trajectory.transitions)
    for step in (steps[0], steps[len(steps) // 2], steps[-1]):
        first, second = replay(step), replay(step)
        off = (first.float() - trajectory.transitions[step].velocity.float()).abs().max().item()
        if off == 0:
            continue
        cause = (
            "the network answers differently each time: switch off dropout and other random layers"
            if not torch.equal(first, second)
            else "the network is deterministic but was not asked alike: compare dtype or autocast, "
            "train/eval mode and guidance of rollout and replay"
        )
        raise ReplayError(
            f"replaying step {step} with unchanged weights moves the velocity by up to {off:.3g} "
            f"(must be exactly 0, or the importance ratio is not 1 before the first update): {cause}"
        )
