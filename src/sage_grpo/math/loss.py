"""The loss of one sample at one timestep."""

import torch
from torch import Tensor


def clipped(log_ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """Where the clip holds the policy back: no gradient flows from these samples."""
    ratio = log_ratio.double().exp()
    return ((ratio > 1 + clip) & (advantage > 0)) | ((ratio < 1 - clip) & (advantage < 0))


def surrogate(log_ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    r"""The clipped form of Eq. 4, with the ratio $\rho$ and the clip range $c$.

    $$-\min\left(\rho A,\ \mathrm{clip}(\rho,\ 1-c,\ 1+c)\,A\right)$$

    In float64: with mean reduction ratios differ from 1 by 1e-5, where float32 has two digits left.
    """
    ratio = log_ratio.double().exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)


def dual_kl(position: Tensor, velocity: Tensor, beta_position: float, beta_velocity: float) -> Tensor:
    r"""Eq. 14 / 40, with the KL to the anchor (`position`) and to the previous policy (`velocity`).

    $$L_\mathrm{KL} = \beta_\mathrm{pos}\,\mathrm{KL}(\theta\Vert\mathrm{anchor})
    + \beta_\mathrm{vel}\,\mathrm{KL}(\theta\Vert\mathrm{previous})$$
    """
    return beta_position * position + beta_velocity * velocity


def sage_loss(policy: Tensor, equalizer: float, kl_weight: float, kl: Tensor) -> Tensor:
    r"""Eq. 43 with the sign of the KL corrected: $S_t\cdot\mathrm{surrogate} + \lambda L_\mathrm{KL}$."""
    return equalizer * policy + kl_weight * kl
