"""Noise levels σ of a sampler, from 1 (noise) to 0 (data), in float64."""

import math

import torch
from torch import Tensor


def shift_sigma(sigma: Tensor, shift: float) -> Tensor:
    r"""Return the shifted noise levels $k\sigma / (1 + (k-1)\sigma)$, in the shape of `sigma`.

    A shift $k$ above 1 spends more steps at high noise.
    """
    return shift * sigma / (1 + (shift - 1) * sigma)


def sigma_schedule(steps: int, shift: float = 1.0) -> Tensor:
    r"""Return the noise levels $\sigma_0 = 1 > \sigma_1 > \dots > \sigma_T = 0$ (T + 1,): uniform, then shifted.

    Args:
        steps: Number of steps $T$.
        shift: 1 leaves the levels uniform; above 1 there are more steps at high noise.

    Examples:
        >>> sigma_schedule(4, shift=3.0)
        tensor([1.0000, 0.9000, 0.7500, 0.5000, 0.0000], dtype=torch.float64)
    """
    if steps < 1 or shift <= 0:
        raise ValueError(f"steps={steps}, shift={shift}: use at least one step and a shift above 0")
    sigma = shift_sigma(torch.linspace(1, 0, steps + 1, dtype=torch.float64), shift)
    sigma[0], sigma[-1] = 1.0, 0.0  # shift/(1 + (shift - 1)) may round to above 1
    return sigma


def short_tail(steps: int, shift: float, end: int, share: float) -> Tensor:
    """Return the noise levels of a schedule with fewer and longer steps after step `end`.

    Up to step `end`, the levels are those of `sigma_schedule(steps, shift)`. After it, a `share` (0 to 1) of the usual
    number of steps, rounded up, leads to 0.
    """
    if share == 1:
        return sigma_schedule(steps, shift)
    left = math.ceil(share * (steps - end) - 1e-9)
    time = torch.linspace(1 - end / steps, 0, left + 1, dtype=torch.float64)
    return torch.cat([sigma_schedule(steps, shift)[: end + 1], shift_sigma(time, shift)[1:]])


def stochastic_window(steps: int, size: int | None = None, start: int = 0) -> Tensor:
    """Return a mask (steps,) of the steps that may be stochastic (mixed ODE-SDE).

    These are `size` steps from step `start` on, or all steps from `start` on if `size` is None.
    """
    if size is not None and not (size >= 1 and 0 <= start <= steps - size):
        raise ValueError(f"a window of {size} steps from step {start} does not fit into {steps} steps")
    index = torch.arange(steps)
    return (index >= start) & (index < start + (steps if size is None else size))
