"""Least-squares fits of clips to videos, for worlds in which a clip is a colour times a mask.

Only the mask, the coverage of pixels, depends on the continuous numbers that are fitted.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def improve(
    numbers: Tensor,
    masks: Callable[[Tensor], Tensor],
    slopes: Callable[[Tensor, Tensor], Tensor],
    projected: Tensor,
    total: Tensor,
    strength: Tensor,
    bounds: tuple[Tensor, Tensor],
    iterations: int,
) -> tuple[Tensor, Tensor]:
    """Fit the continuous numbers of N clips to N videos together, by Levenberg–Marquardt.

    Args:
        numbers: Numbers of each clip to start from, (N, K).
        masks: Function from numbers (N, K) to the clips' coverage of pixels, (N, pixels).
        slopes: Function from numbers and coverage to the derivatives of the coverage, (N, pixels, K).
        projected: Scalar product of each pixel of the video with the clip's colour, (N, pixels).
        total: Squared norm of each video, (N,).
        strength: Squared norm of each clip's colour, (N,).
        bounds: The lowest and the highest numbers, (K,) each.
        iterations: Number of steps. A step is undone if it does not reduce the residual.

    Returns:
        Better numbers (N, K) and squared residuals (N,).
    """

    def residual(mask: Tensor) -> Tensor:
        return total - 2 * (mask * projected).sum(1) + strength * mask.square().sum(1)

    low, high = bounds
    damping, mask = torch.full_like(total, 1e-2), masks(numbers)
    best = residual(mask)
    for _ in range(iterations):
        jacobian = slopes(numbers, mask)
        gradient = torch.einsum("npk,np->nk", jacobian, projected - strength[:, None] * mask)
        normal = strength[:, None, None] * (jacobian.mT @ jacobian)
        diagonal = torch.diagonal(normal, dim1=1, dim2=2)
        damped = normal + torch.diag_embed(damping[:, None] * diagonal + 1e-9)
        trial = (numbers + torch.linalg.solve(damped, gradient)).clamp(low, high)
        trial_mask = masks(trial)
        trial_residual = residual(trial_mask)
        better = trial_residual < best
        numbers = torch.where(better[:, None], trial, numbers)
        mask = torch.where(better[:, None], trial_mask, mask)
        best = torch.where(better, trial_residual, best)
        damping = torch.where(better, damping * 0.3, damping * 5).clamp(1e-9, 1e6)
    return numbers, best


def differences(masks: Callable[[Tensor], Tensor], step: float = 1e-5) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function for the derivatives of `masks` with respect to its K numbers, by differences of size `step`.

    It takes the numbers (N, K) and their mask (N, pixels), and returns derivatives (N, pixels, K). `improve` uses it as
    its `slopes` where no simple formula is known.
    """

    def slopes(numbers: Tensor, mask: Tensor) -> Tensor:
        units = torch.eye(numbers.shape[1], dtype=numbers.dtype)
        return torch.stack([(masks(numbers + step * unit) - mask) / step for unit in units], 2)

    return slopes
