r"""Flow matching on a renoised video: $x = (1-\sigma)x_0 + \sigma z$, with the target $v^* = z - x_0$."""

from torch import Tensor

from sage_grpo.math.gaussian import Reduction, difference, reduce


def matching_error(v: Tensor, noise: Tensor, clean: Tensor, reduction: Reduction = "mean") -> Tensor:
    r"""$\ell(v) = \lVert v - v^*\rVert^2$ a video, in float64."""
    return reduce(difference(v, noise - clean).double().square(), reduction)


def likelier(v: Tensor, v_old: Tensor, noise: Tensor, clean: Tensor, reduction: Reduction = "mean") -> Tensor:
    r"""$\ell(v_\mathrm{old}) - \ell(v)$: how much better than before the network matches the video.

    From the difference $\delta$ of the velocities, so that it is exactly 0 when they agree:
    $-\langle\delta, \delta + 2(v_\mathrm{old} - v^*)\rangle$.
    """
    delta = difference(v, v_old).double()
    return -reduce(delta * (delta + 2 * difference(v_old, noise - clean).double()), reduction)
