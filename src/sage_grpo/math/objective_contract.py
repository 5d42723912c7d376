"""What every objective owes: asked before a run trains, and by `check_objective` in a test of one's own."""

from dataclasses import replace

import torch
from torch import Tensor

from sage_grpo.math.objectives import Ask, Objective

VIDEOS, SHAPE, SIGMA = 6, (3, 4, 5), 0.6


def fault_at_old_policy(objective: Objective, ask: Ask) -> str | None:
    """What is wrong where the policy is the old one, in words; none if all is well.

    There the ratio is 1. A step against the loss makes videos with a positive advantage more likely, and others less.
    """
    v = ask.velocity
    loss = objective.loss(ask)
    if bool(loss.log_ratio.any()):
        return "its log-ratio is not 0 where the policy is the old one"
    if not (loss.value.requires_grad and loss.log_ratio.requires_grad):
        return "its loss or its log-ratio has no gradient: it is computed under no_grad or from a detached velocity"
    likelier = ask.noise - ask.clean - v.detach() if objective.noised else ask.k * ask.noise

    def along(part: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(part.sum(), v, retain_graph=True)
        return (slope * likelier).flatten(1).sum(1)

    if not bool((along(loss.log_ratio) > 0).all()):
        return "its log-ratio falls where the policy makes a video likelier; is it upside down?"
    if not bool((along(loss.value) * ask.advantage < 0).all()):
        return (
            "a step against its loss does not make videos with a positive advantage likelier, and others less likely; "
            "look at the sign of the advantage"
        )
    return None


def check_objective(objective: Objective) -> None:
    """Hold an objective against its contract, on points drawn at random.

    Raises:
        ValueError: What is wrong, in a sentence.
    """
    for dtype in (torch.float64, torch.float32):
        ask = _drawn(dtype)
        fault = fault_at_old_policy(objective, ask) or fault_at_old_policy(
            objective, replace(ask, advantage=-ask.advantage)
        )
        if fault is None:
            aside = ask.velocity.detach() + 0.3 * torch.randn(VIDEOS, *SHAPE, generator=_seeded(2)).to(dtype)
            fault = _fault_elsewhere(objective, replace(ask, old=aside, anchor=aside))
        if fault:
            raise ValueError(f"{type(objective).__name__}: {fault}")


def _fault_elsewhere(objective: Objective, ask: Ask) -> str | None:
    loss, again = objective.loss(ask), objective.loss(ask)
    for name, part in vars(loss).items():
        if part.shape != (VIDEOS,):
            return f"{name} has the shape {tuple(part.shape)}; one number a video is needed"
        if not torch.equal(part, getattr(again, name)):
            return f"{name} differs when it is asked again"
    if loss.value.dtype != torch.float64 or not bool(loss.value.isfinite().all()):
        return "value must be finite, in float64"
    (slope,) = torch.autograd.grad(loss.value.sum(), ask.velocity)
    if loss.held.dtype != torch.bool or bool(slope.flatten(1).any(1)[loss.held].any()):
        return "held must be true or false, and a gradient flows from videos that are held"
    return None


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _drawn(dtype: torch.dtype) -> Ask:
    """A point where the policy is the old one; videos of both signs next to each other."""
    v, noise, clean = torch.randn(3, VIDEOS, *SHAPE, generator=_seeded(1)).to(dtype)
    advantage = 1.0 - 2.0 * (torch.arange(VIDEOS) % 2)
    leaf = v.requires_grad_()
    return Ask(leaf, v.detach(), None, SIGMA, noise, clean, advantage, b=-0.1, k=-0.8)
