"""Closed-form end states: for data N(m, s0²) the velocity is linear in x, so moments propagate exactly."""

import math

import numpy as np
import torch
from torch import Tensor

from sage_grpo.math.kernels import KernelTable, kernel_table
from sage_grpo.math.schedule import sigma_schedule

MEAN = 1.0


def marginal(sigma: float, s0: float) -> tuple[float, float]:
    """Mean and variance of x_σ = (1-σ)x0 + σz."""
    return (1 - sigma) * MEAN, (1 - sigma) ** 2 * s0**2 + sigma**2


def linear_velocity(sigma: float, s0: float) -> tuple[float, float]:
    """(slope, offset) of E[z - x0 | x] = slope·x + offset."""
    mean, variance = marginal(sigma, s0)
    slope = (sigma - (1 - sigma) * s0**2) / variance
    return slope, -slope * mean - MEAN


def propagate(table: KernelTable, s0: float, mean: float, variance: float) -> tuple[float, float]:
    """Moments of the chain of (x, clean estimate of the step before), which is Gaussian too."""
    columns = (table.sigma, table.a, table.b, table.s, table.e)
    means, covariance = np.array([mean, 0.0]), np.array([[variance, 0.0], [0.0, 0.0]])
    for sigma, a, b, s, e in zip(*(c.tolist() for c in columns), strict=True):
        slope, offset = linear_velocity(sigma, s0)
        step = np.array([[a + b * slope, e], [1 - sigma * slope, 0.0]])
        means = step @ means + offset * np.array([b, -sigma])
        covariance = step @ covariance @ step.T + np.diag([s**2, 0.0])
    return means[0], covariance[0, 0]


def full_grid_error(kernel: str, s0: float, steps: int, eta: float, shift: float = 5.0, order: int = 1) -> float:
    """√((mean-m)² + (std-s0)²) of the end state, started from pure noise."""
    mean, variance = propagate(kernel_table(kernel, sigma_schedule(steps, shift), eta, order), s0, 0.0, 1.0)
    return math.hypot(mean - MEAN, math.sqrt(variance) - s0)


def interior_error(kernel: str, s0: float, steps: int, eta: float, order: int = 1) -> float:
    """Error of mean and variance on a uniform grid 0.95 → 0.05, started from the exact marginal."""
    grid: Tensor = torch.linspace(0.95, 0.05, steps + 1, dtype=torch.float64)
    mean, variance = propagate(kernel_table(kernel, grid, eta, order), s0, *marginal(0.95, s0))
    target_mean, target_variance = marginal(0.05, s0)
    return math.hypot(mean - target_mean, variance - target_variance)


def order(coarse: float, fine: float, refinement: float) -> float:
    return math.log(coarse / fine) / math.log(refinement)
