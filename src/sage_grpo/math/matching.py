r"""Flow matching on a renoised video: $x = (1-\sigma)x_0 + \sigma z$, with the target $v^* = z - x_0$."""

from torch import Tensor

from sage_grpo.math.gaussian import Reduction, difference, reduce


def matching_error(v: Tensor, noise: Tensor, clean: Tensor, reduction: Reduction = "mean") -> Tensor:
    r"""Return the matching error $\ell(v) = \lVert v - v^*\rVert^2$ per video (B,), in float64.

    `noise` is $z$ and `clean` is $x_0$, both (B, …) like the velocity `v`.
    """
    return reduce(difference(v, noise - clean).double().square(), reduction)


def matching_log_ratio(v: Tensor, v_old: Tensor, noise: Tensor, clean: Tensor, reduction: Reduction = "mean") -> Tensor:
    r"""Return $\ell(v_\mathrm{old}) - \ell(v)$ per video (B,): how much better `v` matches the video than `v_old`.

    It is computed from the difference $\delta = v - v_\mathrm{old}$, so that it is exactly 0 when both agree:
    $-\langle\delta, \delta + 2(v_\mathrm{old} - v^*)\rangle$.
    """
    delta = difference(v, v_old).double()
    return -reduce(delta * (delta + 2 * difference(v_old, noise - clean).double()), reduction)
