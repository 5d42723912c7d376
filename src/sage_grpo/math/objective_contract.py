"""The contract of every objective. A run checks it before training, and your own test can call `check_objective`."""

from dataclasses import replace

import torch
from torch import Tensor

from sage_grpo.math.objectives import LossInputs, Objective

VIDEOS, SHAPE, SIGMA = 6, (3, 4, 5), 0.6


def fault_at_old_policy(objective: Objective, inputs: LossInputs) -> str | None:
    """Return what is wrong with an objective at inputs where the policy equals the old one; None if nothing is.

    The log-ratio must be 0 there. A gradient step on the loss must make videos with a positive advantage more likely,
    and videos with a negative advantage less likely.
    """
    v = inputs.velocity
    loss = objective.loss(inputs)
    if bool(loss.log_ratio.any()):
        return "its log-ratio is not 0 where the policy is the old one"
    if not (loss.value.requires_grad and loss.log_ratio.requires_grad):
        return "its loss or its log-ratio has no gradient: it is computed under no_grad or from a detached velocity"
    towards_video = inputs.noise - inputs.clean - v.detach() if objective.renoised else inputs.k * inputs.noise

    def along(part: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(part.sum(), v, retain_graph=True)
        return (slope * towards_video).flatten(1).sum(1)

    if not bool((along(loss.log_ratio) > 0).all()):
        return "its log-ratio falls where the policy makes a video more likely; is it upside down?"
    if not bool((along(loss.value) * inputs.advantage < 0).all()):
        return (
            "a step against its loss does not make videos with a positive advantage more likely, and others less; "
            "look at the sign of the advantage"
        )
    return None


def check_objective(objective: Objective) -> None:
    """Refuse an objective that breaks the contract, by evaluating it on random inputs.

    Raises:
        ValueError: The objective breaks the contract; the message says how.
    """
    for dtype in (torch.float64, torch.float32):
        inputs = _drawn(dtype)
        fault = fault_at_old_policy(objective, inputs) or fault_at_old_policy(
            objective, replace(inputs, advantage=-inputs.advantage)
        )
        if fault is None:
            aside = inputs.velocity.detach() + 0.3 * torch.randn(VIDEOS, *SHAPE, generator=_seeded(2)).to(dtype)
            fault = _fault_elsewhere(objective, replace(inputs, old=aside, anchor=aside))
        if fault:
            raise ValueError(f"{type(objective).__name__}: {fault}")


def _fault_elsewhere(objective: Objective, inputs: LossInputs) -> str | None:
    loss, again = objective.loss(inputs), objective.loss(inputs)
    for name, part in vars(loss).items():
        if part.shape != (VIDEOS,):
            return f"{name} has the shape {tuple(part.shape)}; one number per video is needed"
        if not torch.equal(part, getattr(again, name)):
            return f"{name} differs when it is computed again"
    if loss.value.dtype != torch.float64 or not bool(loss.value.isfinite().all()):
        return "value must be finite, in float64"
    (slope,) = torch.autograd.grad(loss.value.sum(), inputs.velocity)
    if loss.clipped.dtype != torch.bool or bool(slope.flatten(1).any(1)[loss.clipped].any()):
        return "clipped must be true or false, and no gradient may flow from videos that are clipped"
    return None


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _drawn(dtype: torch.dtype) -> LossInputs:
    """Draw inputs for which the policy equals the old one, with advantages of both signs."""
    v, noise, clean = torch.randn(3, VIDEOS, *SHAPE, generator=_seeded(1)).to(dtype)
    advantage = 1.0 - 2.0 * (torch.arange(VIDEOS) % 2)
    leaf = v.requires_grad_()
    return LossInputs(leaf, v.detach(), None, SIGMA, noise, clean, advantage, b=-0.1, k=-0.8)
