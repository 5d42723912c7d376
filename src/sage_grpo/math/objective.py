"""The loss of one sample at one timestep."""

import torch
from torch import Tensor


def clipped(log_ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """Where the clip holds the policy back: no gradient flows from these samples."""
    ratio = log_ratio.double().exp()
    return ((ratio > 1 + clip) & (advantage > 0)) | ((ratio < 1 - clip) & (advantage < 0))


def velocity_gradient(log_ratio: Tensor, advantage: Tensor, clip: float, pull: Tensor) -> Tensor:
    """|∂ surrogate/∂v| a sample, where `pull` = |∂ log-ratio/∂v| = |k|·‖ε - kδ‖: what the equalizer balances."""
    free = ~clipped(log_ratio, advantage, clip)
    return free * log_ratio.double().exp() * advantage.abs() * pull


def surrogate(log_ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """-min(ratio·A, clip(ratio, 1±clip)·A), the clipped form of Eq. 4.

    In float64: with mean reduction ratios differ from 1 by 1e-5, where float32 has two digits left.
    """
    ratio = log_ratio.double().exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)


def dual_kl(position: Tensor, velocity: Tensor, beta_position: float, beta_velocity: float) -> Tensor:
    """Eq. 14 / 40: L_KL = β_pos·KL(θ‖anchor) + β_vel·KL(θ‖previous)."""
    return beta_position * position + beta_velocity * velocity


def sage_loss(policy: Tensor, equalizer: float, kl_weight: float, kl: Tensor) -> Tensor:
    """Eq. 43 with the sign of the KL corrected: S_t·surrogate + λ·L_KL."""
    return equalizer * policy + kl_weight * kl
