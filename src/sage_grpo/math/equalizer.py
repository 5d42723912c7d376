"""The temporal gradient equalizer: weights that give every timestep equal optimization pressure."""

import torch
from torch import Tensor

from sage_grpo.math.kernels import KernelTable


def gradient_scale(table: KernelTable) -> Tensor:
    r"""Return $N_t = |b_t|/s_t$ for each step of the table (T,), and 0 for steps without noise (Eq. 38).

    The gradient of $\log\pi$ with respect to the velocity is proportional to $N_t$.
    """
    return table.k.abs()


def equalizer(table: KernelTable) -> Tensor:
    r"""Return the loss weight $S_t = \mathrm{median}(N)/N_t$ of each step of the table (T,) (Eq. 9 / 39).

    $N_t$ is the `gradient_scale`. The median is over the stochastic steps; the other steps have the weight 0.
    """
    scale, on = gradient_scale(table), table.stochastic
    if not on.any():
        return torch.zeros_like(scale)
    return torch.where(on, scale[on].quantile(0.5) / scale, torch.zeros_like(scale))
