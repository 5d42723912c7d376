"""The temporal gradient equalizer: equal optimization pressure on every timestep."""

import torch
from torch import Tensor

from sage_grpo.math.kernels import KernelTable


def gradient_scale(table: KernelTable) -> Tensor:
    r"""Eq. 38: $N_t = |b_t|/s_t$, how large the gradient of $\log\pi$ is per unit of velocity; 0 if no noise."""
    return table.k.abs()


def equalizer(table: KernelTable) -> Tensor:
    r"""Eq. 9 / 39: $S_t = \mathrm{median}(N)/N_t$ over the stochastic steps; 0 on the others."""
    scale, on = gradient_scale(table), table.stochastic
    if not on.any():
        return torch.zeros_like(scale)
    return torch.where(on, scale[on].quantile(0.5) / scale, torch.zeros_like(scale))
