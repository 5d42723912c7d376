"""The temporal gradient equalizer: equal optimization pressure on every timestep."""

import torch
from torch import Tensor

from sage_grpo.math.kernels import KernelTable


def gradient_scale(table: KernelTable) -> Tensor:
    r"""Return $N_t = |b_t|/s_t$ of each step (T,), 0 without noise (Eq. 38).

    It is the size of the gradient of $\log\pi$ per unit of velocity.
    """
    return table.k.abs()


def equalizer(table: KernelTable) -> Tensor:
    r"""Return the weight $S_t = \mathrm{median}(N)/N_t$ of each step (T,), 0 without noise (Eq. 9 / 39).

    The median is over the stochastic steps.
    """
    scale, on = gradient_scale(table), table.stochastic
    if not on.any():
        return torch.zeros_like(scale)
    return torch.where(on, scale[on].quantile(0.5) / scale, torch.zeros_like(scale))
