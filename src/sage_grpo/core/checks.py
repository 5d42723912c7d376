"""The checks of a run before its first update.

A replay must give the velocities of the rollout, velocities must point from data to noise, and every trained parameter
must get a gradient.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from sage_grpo.config import AlgorithmConfig
from sage_grpo.core.comm import Comm
from sage_grpo.core.rollout import Trajectory, forward_settings, velocities, velocity_at
from sage_grpo.core.selection import TrainBatch
from sage_grpo.core.update import loss_inputs, trust_region
from sage_grpo.core.video_model import VideoModel, whole
from sage_grpo.errors import UserError
from sage_grpo.math.objective_contract import fault_at_old_policy
from sage_grpo.math.objectives import Objective

# Of a network's velocity, relative rms: several times what two kernels for one operation differ by in a deep network.
ROUNDING = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
# Cosine of velocity and pure noise: near 1 for a trained model, near 0 for random weights, near -1 the wrong way round.
BACKWARDS = -0.5


class ReplayError(UserError, RuntimeError):
    """Raised when the network, with unchanged weights, does not give the velocities of the rollout again."""


class BackwardVelocity(UserError, RuntimeError):
    """Raised when the model's velocity points from noise to data, instead of from data to noise."""


class SilentTraining(UserError, RuntimeError):
    """Raised when training would run, but not train a parameter or a part of the loss as the recipe says."""


def check_replay(
    model: VideoModel,
    trajectory: Trajectory,
    together: int = 1,
    comm: Comm | None = None,
    *,
    exact: bool = True,
) -> float:
    """Refuse a model that does not give the velocities of a rollout again, although its weights are unchanged.

    The replay covers the first, the middle and the last trained timesteps, with gradient, as in training.

    Args:
        model: Has the weights with which the stored velocities were evaluated.
        trajectory: A batch of the rollout, with a stored velocity at each of its points.
        together: Number of timesteps per forward pass.
        comm: Shares the deviations, so that all processes see the largest one and stop together; None for one process.
        exact: Whether velocities must be equal bit for bit, as is needed if a rollout serves several updates. If False,
            rounding is allowed: kernels may round differently with and without gradient. A rollout that serves a single
            update has ratios of 1 in any case, because the update takes its own velocities as the old ones.

    Returns:
        The largest relative deviation ‖replayed - stored‖/‖stored‖ of the velocities, over the replayed timesteps and
        all replicas.

    Raises:
        ReplayError: A deviation exceeds the limit; the message names the likely cause.
    """
    stored, worst = list(trajectory.points), 0.0
    chosen = sorted({0, len(stored) // 2, max(len(stored) - together, 0)})
    for steps in ([*stored[i : i + together]] for i in chosen):
        first, second = (torch.cat([v.detach() for v in velocities(model, trajectory, steps)]) for _ in "ab")
        expected = torch.cat([trajectory.points[step].stored for step in steps])
        moved, size = (first.float() - expected.float()).norm(), expected.float().norm()
        off = _worst(moved / size.clamp(min=torch.finfo(size.dtype).tiny), comm)
        limit = 0.0 if exact else rounding(model, first)
        if not off <= limit:  # nor may it be NaN
            raise ReplayError(
                f"replaying step {steps[0]} with unchanged weights moves the velocity by {off:.2g} of its size; it "
                + (
                    f"must be within {limit:.2g}, which is rounding: "
                    if limit
                    else "must be exactly 0, for the rollout serves several updates and their ratios start at 1: "
                )
                + _cause(model, trajectory, torch.equal(first, second), exact, off <= rounding(model, first))
            )
        worst = max(worst, off)
    return worst


def rounding(model: VideoModel, velocity: Tensor) -> float:
    """Return the largest relative deviation of a velocity that rounding alone may cause.

    It depends on the precision of the velocity, of the weights and of autocast. Guidance g·v - (g-1)·v' enlarges the
    rounding of both its branches.
    """
    kinds = (velocity.dtype, next(model.module.parameters()).dtype, model.autocast_dtype)
    scale = model.guidance_scale
    return max(ROUNDING.get(kind, 0.0) for kind in kinds if kind) * math.hypot(scale, scale - 1)


def _worst(value: Tensor, comm: Comm | None) -> float:
    """Return the largest `value` of all processes, or NaN if any process has NaN, so that all stop together."""
    if comm is None:
        return value.item()
    row = torch.zeros(comm.sp_size, dtype=torch.float64)  # of the processes that share this video
    row[comm.sp_rank] = value.double()
    return comm.gather(comm.sum_sp(row)).max().item()


def _cause(model: VideoModel, trajectory: Trajectory, steady: bool, exact: bool, small: bool) -> str:
    x = next(iter(trajectory.points.values())).x
    now, then = forward_settings(model, x), trajectory.forward_settings
    changed = [
        f"{name} was {then[name]} in the rollout and is {now[name]} in the replay"
        for name in now
        if now[name] != then[name]
    ]
    if not steady:
        random = [name for name, m in model.module.named_modules() if "Drop" in type(m).__name__ and m.training]
        where = f" ({', '.join(random[:3])})" if random else ""
        changed.append(f"the network answers differently each time: switch off dropout and other random layers{where}")
    if not changed and exact and small:
        changed.append(
            "this is rounding: kernels differ with and without gradient, or with the batch. Make one update of a "
            "rollout (policy.num_iterations=1, policy.num_minibatches=1), which needs no equal bits; or leave out "
            "tuning.compile, set policy.replay_timesteps=1, and choose another tuning.attention"
        )
    return "; ".join(changed) or (
        "the network is deterministic but was not asked alike: compare autocast, caches and what "
        "the model keeps between calls"
    )


def check_direction(model: VideoModel, trajectory: Trajectory, comm: Comm | None = None) -> float:
    """Refuse a model whose velocity points from noise to data, instead of from data to noise.

    At pure noise $v = x - E[x_0]$, so the velocity points along $x$. A model whose velocity points against $x$ was
    wrapped wrongly.

    Returns:
        The cosine between pure noise and the velocity there, the smallest of all replicas.

    Raises:
        BackwardVelocity: The cosine is below `BACKWARDS`.
    """
    noise, sigma = next(iter(trajectory.points.values())).noise, trajectory.table.sigma[0].item()
    with torch.no_grad():
        v = velocity_at(model, noise, sigma, trajectory.condition).float()
    cosine = -_worst(-torch.cosine_similarity(v.flatten(), noise.flatten(), dim=0), comm)
    if cosine < BACKWARDS:
        raise BackwardVelocity(
            f"the velocity points from noise to data: its cosine with pure noise is {cosine:.2f}, and a trained model "
            "has about 1. velocity() must give dx/dsigma = noise - data; flip its sign, or give the network sigma "
            "where it now gets 1 - sigma"
        )
    return cosine


def check_training(
    model: VideoModel,
    trajectory: Trajectory,
    objective: Objective,
    config: AlgorithmConfig,
    comm: Comm | None = None,
) -> None:
    """Refuse a run in which a part of the loss or a trained parameter gets no gradient.

    Every part of the loss must have a gradient with respect to the velocity. The velocity must have a gradient with
    respect to every trained parameter. Repeated blocks must train the same parameters, and the objective must fulfil
    the contract of `math.objective_contract`. Gradients are cleared at the end.

    Raises:
        SilentTraining: One of these conditions fails; the message names the parameters or the part of the loss, and
            where to look.
    """
    trained = {name: p for name, p in model.module.named_parameters() if p.requires_grad}
    if not trained:
        raise SilentTraining("nothing is trained: every parameter of the model is frozen (requires_grad is False)")
    uneven = _uneven_blocks(model.shard_blocks, model.module, model.unused)
    if uneven:
        raise SilentTraining(uneven)
    step = next(iter(trajectory.points))
    point = trajectory.points[step]
    (v,) = velocities(model, trajectory, [step])
    if not v.requires_grad:
        raise SilentTraining("the velocity has no gradient: look for no_grad or detach in the model's velocity()")
    _check_loss(trajectory, step, v.detach().requires_grad_(True), objective, config)
    torch.autograd.backward((v * point.noise).mean())
    if any(p.grad is None for p in trained.values()):  # a mixture has another expert at the other end of the noise
        low = point.x.new_full((len(point.x),), trajectory.table.sigma[-1].item())
        late = model.velocity(point.x, low, trajectory.condition)  # with adapters, even where rollouts have none
        torch.autograd.backward((late * point.noise).mean())
    cut = [name for name, p in trained.items() if p.grad is None]
    found = [p.grad.detach().norm() for p in trained.values() if p.grad is not None]
    largest = max((float(whole(norm)) for norm in found), default=0.0)
    dead = _worst(torch.tensor(largest), comm) == 0.0
    model.module.zero_grad(set_to_none=True)
    if cut or dead:
        names = ", ".join((cut or list(trained))[:3])
        raise SilentTraining(
            f"{len(cut) or len(trained)} of {len(trained)} trained parameters get no gradient: {names}; "
            "freeze them (an adapter names them in `unused`), or look for what cuts them off"
        )


def _check_loss(path: Trajectory, step: int, v: Tensor, objective: Objective, config: AlgorithmConfig) -> None:
    """Refuse a loss with a part whose gradient by the velocity `v` (B, …) is missing, 0 or of the wrong sign.

    The KLs are tested with reference velocities moved aside by 0.1, because all KLs and their gradients are 0 where the
    velocities agree.
    """
    aside, sides = v.detach() + 0.1, 1.0 - 2.0 * (torch.arange(len(v), device=v.device) % 2)
    moved = replace(path, points={step: replace(path.points[step], velocity=aside)})
    batch = TrainBatch(path, sides, torch.ones_like(sides))
    policy = objective.loss(loss_inputs(batch, step, v, on_policy=True))
    apart = trust_region(loss_inputs(replace(batch, trajectory=moved), step, v, aside), config)
    parts = {"the policy loss": policy.value}
    if config.kl.high > 0 and config.kl.anchor != "none" and config.kl.anchor_weight > 0:
        parts["the KL to the anchor"] = apart.anchor
    if config.kl.high > 0 and config.kl.old_weight > 0:
        parts["the KL to the previous policy"] = apart.old
    if config.kl.high > 0 and len(parts) > 1:
        parts["the KL penalty"] = apart.penalty
    for name, part in parts.items():
        found = torch.autograd.grad(part.sum(), v, retain_graph=True)[0] if part.requires_grad else None
        if found is None or not bool(found.any()):
            raise SilentTraining(f"{name} has no gradient: it is computed under no_grad or from a detached velocity")
    for advantage in (sides, -sides):
        fault = fault_at_old_policy(
            objective, loss_inputs(replace(batch, advantage=advantage), step, v, on_policy=True)
        )
        if fault:
            raise SilentTraining(f"policy.objective {config.policy.objective!r}: {fault}")


def _uneven_blocks(blocks: Sequence[nn.Module], module: nn.Module, unused: Sequence[str]) -> str:
    """Return a message that names a repeated block which trains fewer parameters than other blocks of its class.

    It is empty if all blocks of a class train the same parameters, except for those that match a pattern in `unused`.
    """
    places = {id(m): name for name, m in module.named_modules()}
    by_kind: dict[type, list[nn.Module]] = {}
    for block in blocks:
        by_kind.setdefault(type(block), []).append(block)
    for alike in by_kind.values():
        trained = {n for block in alike for n, p in block.named_parameters() if p.requires_grad}
        for block in alike:
            mine = {n for n, p in block.named_parameters() if p.requires_grad}
            there = {n for n, _ in block.named_parameters()} | {n for n, _ in block.named_modules()}
            place = places.get(id(block), type(block).__name__)
            lost = sorted(
                n
                for n in trained - mine
                if n.split(".lora_")[0] in there and not any(re.search(u, f"{place}.{n}") for u in unused)
            )
            if lost or not mine:
                what = f"{lost[0]} and {len(lost) - 1} more parameters" if lost else "no parameter at all"
                return (
                    f"{place} does not train what the other {len(alike) - 1} blocks do: {what}; "
                    "wrap or unfreeze every block alike"
                )
    return ""
