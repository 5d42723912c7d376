"""The trust region's penalty, and the whole loss of a video at one timestep."""

from torch import Tensor


def dual_kl(anchor: Tensor, old: Tensor, anchor_weight: float, old_weight: float) -> Tensor:
    r"""Return the penalty (B,) of the dual trust region (Eq. 14 / 40), from the KLs (B,) to anchor and old policy.

    $$L_\mathrm{KL} = w_\mathrm{anchor}\,\mathrm{KL}(\theta\Vert\mathrm{anchor})
    + w_\mathrm{old}\,\mathrm{KL}(\theta\Vert\mathrm{old})$$

    The paper calls the first the position term and the second the velocity term.
    """
    return anchor_weight * anchor + old_weight * old


def sage_loss(policy: Tensor, equalizer: float, kl_weight: float, kl: Tensor) -> Tensor:
    r"""Return the loss per video (B,), $S_t\,L_\mathrm{policy} + \lambda L_\mathrm{KL}$: Eq. 43, its sign corrected."""
    return equalizer * policy + kl_weight * kl
