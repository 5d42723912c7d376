"""One optimizer update over a rollout: anchor → velocities → loss → gradient → step."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sage_grpo.config import AlgorithmConfig
from sage_grpo.core.anchor import anchor_velocities
from sage_grpo.core.comm import Comm
from sage_grpo.core.outside import NoisedVideos, initial_velocities, velocity_change
from sage_grpo.core.protocols import WeightsBank
from sage_grpo.core.rollout import keyed_rng, velocities
from sage_grpo.core.selection import TrainBatch
from sage_grpo.core.video_model import VideoModel
from sage_grpo.math.gaussian import kl, sampled_kl
from sage_grpo.math.loss import dual_kl, sage_loss
from sage_grpo.math.objectives import Loss, LossInputs, Objective

COLUMNS = ("weight", "loss", "ratio", "log_ratio_sq", "clip_frac", "kl_anchor", "kl_old", "kl_penalty", "gradient")


@dataclass(frozen=True)
class UpdateStep:
    """The settings of one optimizer update besides its batches, the same on all ranks."""

    objective: Objective
    step_weights: Tensor
    """Weight of the policy loss at each timestep (T,), from the equalizer or the objective."""
    kl_weight: float
    """λ, the weight of the trust region."""
    samples: int
    """Number of videos on all ranks that the loss is a mean over. Masked videos do not count, so masks do not change
    the scale of the loss."""
    anchor_places: Collection[int] = ()
    """Indices into a batch's `steps` at which the anchor is evaluated."""
    on_policy: bool = False
    """Whether the weights are still those of the rollout. The old velocity is then the network's own output, and the
    ratio exactly 1, even where replay rounds differently."""
    outside: Sequence[NoisedVideos] = ()
    """Videos at untrained noise levels, where changes of the velocity are penalized."""


@dataclass(frozen=True)
class UpdateResult:
    """The result of one optimizer update.

    `stepped` is False if the loss or gradient was not finite, so that no step was made. `steps` are the trained
    timesteps. `per_step` maps each name in `COLUMNS` to a list with one value for each of `steps`, a mean over videos.
    """

    stepped: bool
    grad_norm: float
    steps: tuple[int, ...]
    per_step: dict[str, list[float]]
    outside: float | None = None
    """Mean squared change of the velocity from the initial policy's at untrained noise levels; None if not measured."""

    def mean(self, name: str) -> float:
        return sum(self.per_step[name]) / len(self.steps)


def update(
    model: VideoModel,
    batches: Sequence[TrainBatch],
    step: UpdateStep,
    config: AlgorithmConfig,
    *,
    optimizer: torch.optim.Optimizer,
    bank: WeightsBank,
    comm: Comm,
) -> UpdateResult:
    """Make one optimizer update from the timesteps of all batches, and return its statistics.

    The loss is a mean over videos and timesteps. If the loss or the gradient is not finite on any rank, no rank steps.
    """
    size, count = config.policy.replay_timesteps, len(batches[0].steps)
    passes = [(batch, range(i, min(i + size, count))) for i in range(0, count, size) for batch in batches]

    # 1. Velocities of the anchor.
    anchored = [
        (batch.trajectory, [batch.steps[i] for i in places if i in step.anchor_places]) for batch, places in passes
    ]
    anchors = anchor_velocities(model, bank, anchored)
    initial = initial_velocities(model, bank, step.outside)

    optimizer.zero_grad(set_to_none=True)
    scale = comm.num_replicas / (step.samples * count)  # ranks average their gradients
    # on the device until the end: the host must not wait between passes
    totals = batches[0].advantage.new_zeros(len(step.step_weights), len(COLUMNS), dtype=torch.float64)
    for number, ((batch, places), anchor) in enumerate(zip(passes, anchors, strict=True), 1):
        # 2. Velocities of the policy, at several timesteps in one forward pass.
        timesteps = [batch.steps[i] for i in places]
        outputs = velocities(model, batch.trajectory, timesteps)

        # 3. The loss of each video at each timestep. It sees velocities alone, so its gradient by them comes first.
        losses, leaves = [], []
        for t, output in zip(timesteps, outputs, strict=True):
            v = output.detach().requires_grad_()
            inputs = loss_inputs(batch, t, v, anchor.get(t), on_policy=step.on_policy)
            trust = trust_region(inputs, config)
            policy = step.objective.loss(inputs)
            loss = sage_loss(policy.value, step.step_weights[t].item(), step.kl_weight, trust.penalty)
            losses.append((loss * batch.weight).sum())
            leaves.append(v)
            totals[t] += _row(loss, policy, trust, v, batch.weight)

        # 4. Gradient: from the loss to the velocities, from them to the weights.
        (scale * torch.stack(losses).sum()).backward()  # type: ignore[no-untyped-call]
        comm.set_last_backward(model.module, last=number == len(passes) + len(step.outside))
        torch.autograd.backward(outputs, [leaf.grad for leaf in leaves])

    # 5. Gradient of the penalty on velocities outside the window.
    outside = totals.new_zeros(())
    for number, (videos, before) in enumerate(zip(step.outside, initial, strict=True), 1):
        change = velocity_change(model, videos, before)
        comm.set_last_backward(model.module, last=number == len(step.outside))
        (config.kl.outside_weight * change).backward()  # type: ignore[no-untyped-call]
        outside = outside + change.detach()

    # 6. Step of the optimizer, unless something is not finite.
    norm = comm.clip_grad_norm((p for p in model.module.parameters() if p.requires_grad), config.policy.max_grad_norm)
    totals = comm.mean(totals).cpu()
    outside = comm.mean(outside).cpu() if step.outside else outside
    stepped = bool(totals.isfinite().all() and norm.isfinite() and outside.isfinite())
    if stepped:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    seen = totals[:, 0].nonzero().flatten()
    means = (totals / totals[:, :1])[seen].T.tolist()
    per_step = dict(zip(COLUMNS, means, strict=True))
    return UpdateResult(stepped, norm.item(), tuple(seen.tolist()), per_step, outside.item() if step.outside else None)


def trained_steps(steps: Sequence[int], config: AlgorithmConfig, *key: int | str) -> list[list[int]]:
    """Draw the timesteps that one pass over a rollout trains, and divide them among the optimizer updates of the pass.

    Args:
        steps: The timesteps to draw from.
        config: Gives how many timesteps to draw, whether to shuffle them, and the number of updates.
        key: Determines the draw together with the seed, so that all ranks draw the same.

    Returns:
        For each update, the timesteps that it trains, in order.
    """
    rng, policy = keyed_rng(config.seed, *key, "timesteps"), config.policy
    order = rng.permutation(len(steps))[: config.trained_steps].tolist()
    order = order if policy.permute_timesteps else sorted(order)
    return [[steps[i] for i in order[part :: policy.num_minibatches]] for part in range(policy.num_minibatches)]


def loss_inputs(
    batch: TrainBatch, timestep: int, v: Tensor, anchor: Tensor | None = None, *, on_policy: bool = False
) -> LossInputs:
    """Return the inputs of the objective at one timestep of a batch.

    Args:
        batch: Videos with their advantages.
        timestep: Key of a point of the batch's trajectory.
        v: Velocity (B, …) of the policy at this point.
        anchor: Velocity (B, …) of the anchor at this point; None if the anchor is not evaluated.
        on_policy: Whether to take `v` itself as the old policy's velocity.
    """
    path, point = batch.trajectory, batch.trajectory.points[timestep]
    old = v.detach() if on_policy or point.velocity is None else point.velocity
    return LossInputs(v, old, anchor, point.sigma, point.noise, path.x0, batch.advantage, point.b, point.k, point.scale)


@dataclass(frozen=True)
class TrustRegion:
    """The KLs of the policy to its two references at one timestep, each with one value per video (B,)."""

    anchor: Tensor
    """KL to the anchor; 0 at timesteps where the anchor is not evaluated. To make up for these, it is divided by
    `kl.share`."""
    old: Tensor
    """KL to the policy that made the rollout."""
    penalty: Tensor
    """The weighted sum of both KLs, which λ multiplies in the loss."""


def trust_region(inputs: LossInputs, config: AlgorithmConfig) -> TrustRegion:
    """Return the KLs (B,) of the policy to its two references at one timestep. All objectives use the same KLs."""
    reduction, trust, v, k = config.policy.reduction, config.kl, inputs.velocity, inputs.k
    old = kl(v, inputs.old, k, reduction)
    if trust.estimator == "sampled":
        old = inputs.scale * sampled_kl(v, inputs.old, inputs.noise, k, reduction)
    # the anchor is evaluated at a share of the steps only: 1/share makes up for the others
    anchor = torch.zeros_like(old) if inputs.anchor is None else kl(v, inputs.anchor, k, reduction) / trust.share
    return TrustRegion(anchor, old, dual_kl(anchor, old, trust.anchor_weight, trust.old_weight))


def gradient_size(loss: Loss, v: Tensor) -> Tensor:
    """Return the norm per video (B,) of the loss's gradient with respect to the velocity `v` (B, …) (Eq. 36).

    The equalizer balances this norm over timesteps.
    """
    (force,) = torch.autograd.grad(loss.value.sum(), v, retain_graph=True)
    size: Tensor = force.flatten(1).norm(dim=1)
    return size


def _row(loss: Tensor, policy: Loss, trust: TrustRegion, v: Tensor, weight: Tensor) -> Tensor:
    """Return the sums over videos of `COLUMNS` at one timestep (len(COLUMNS),)."""
    # the gradient is that before weighing; times step_weights[t] it is what the network gets
    log_ratio, gradient = policy.log_ratio, gradient_size(policy, v)
    kls = (trust.anchor, trust.old, trust.penalty)
    columns = (
        torch.ones_like(loss),
        loss,
        log_ratio.double().exp(),
        log_ratio.square(),
        policy.clipped,
        *kls,
        gradient,
    )
    return torch.stack([(column.detach().double() * weight).sum() for column in columns])
