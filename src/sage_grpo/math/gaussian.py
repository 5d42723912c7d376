r"""Log-ratio and KL of two Gaussian policies, computed from their velocities alone.

In a step $x' = a\,x + b\,v + s\,\varepsilon$ both policies share $a$, $s$ and the state $x$, so their means differ by
$b\,(v - v')$. Nothing else is needed, and no difference of two large log-densities ever appears.
"""

from typing import Literal

import torch
from torch import Tensor

Reduction = Literal["mean", "sum"]


def reduce(x: Tensor, reduction: Reduction = "mean") -> Tensor:
    """Reduce `x` (B, …) to one number per sample (B,).

    The mean over the $D$ elements of a sample, which all reference code uses, acts as a temperature of $1/D$.
    """
    flat = x.flatten(1)
    return flat.mean(1) if reduction == "mean" else flat.sum(1)


def difference(v: Tensor, v_other: Tensor) -> Tensor:
    """Return `v - v_other` (B, …), in float32 at least."""
    dtype = torch.promote_types(v.dtype, torch.float32)
    return v.to(dtype) - v_other.to(dtype)


def log_ratio(v: Tensor, v_old: Tensor, noise: Tensor, k: float, reduction: Reduction = "mean") -> Tensor:
    r"""Return the log-ratio (B,) of the policy to the one that made the rollout's step with `noise` (Eq. 4, 43).

    $$\log\frac{\pi_\theta}{\pi_\mathrm{old}} = k\,\langle\varepsilon, \delta\rangle - \tfrac12 k^2\lVert\delta\rVert^2,
    \qquad \delta = v_\theta - v_\mathrm{old}$$

    Where $\delta = 0$, the log-ratio is exactly 0.

    Args:
        v: Velocity (B, …) of the policy.
        v_old: Velocity (B, …) of the policy that made the rollout.
        noise: $\varepsilon$ (B, …) of the rollout's step $x' = ax + bv + s\varepsilon$.
        k: $b/s$ of the step.
        reduction: Whether the products above are sums over the elements of a latent, or means.

    Examples:
        >>> log_ratio(torch.tensor([[1.0]]), torch.tensor([[0.5]]), torch.tensor([[2.0]]), k=1.0)
        tensor([0.8750])
    """
    delta = difference(v, v_old)
    return k * reduce(noise * delta, reduction) - 0.5 * k**2 * reduce(delta.square(), reduction)


def kl(v: Tensor, v_ref: Tensor, k: float, reduction: Reduction = "mean") -> Tensor:
    r"""Return the KL (B,) of the policy to a reference policy, from their velocities (B, …).

    $$\mathrm{KL}(\pi_\theta\Vert\pi_\mathrm{ref}) = \tfrac12 k^2\lVert v_\theta - v_\mathrm{ref}\rVert^2$$

    These are Eq. 11-13 with $2\Sigma$ in place of $2\Sigma^2$, and Eq. 15 in closed form.
    """
    return 0.5 * k**2 * reduce(difference(v, v_ref).square(), reduction)


def sampled_kl(v: Tensor, v_old: Tensor, noise: Tensor, k: float, reduction: Reduction = "mean") -> Tensor:
    r"""Return an estimate (B,) of the KL to the old policy, from the noise of the rollout's step (Eq. 15 as printed).

    The estimate is $\log\pi_\mathrm{old} - \log\pi_\theta$ of that step. Its mean over the noise is
    $\mathrm{KL}(\pi_\mathrm{old}\Vert\pi_\theta)$, which `kl` gives without noise. A single estimate may be negative.
    Where $\delta = v_\theta - v_\mathrm{old}$ is 0, the estimate is 0 and its gradient $-k\varepsilon$, of mean 0.
    """
    return -log_ratio(v, v_old, noise, k, reduction)
