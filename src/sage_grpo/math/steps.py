r"""Forms of sampling steps $x' = a\,x + b\,v + s\,\varepsilon$ that kernels are made of.

Every function takes the noise levels $\sigma$ and $\sigma'$ of the steps (T,) and returns their coefficients (T,) each;
$\Delta = \sigma - \sigma'$.
"""

import torch
from torch import Tensor

Coefficients = tuple[Tensor, Tensor, Tensor]


def euler_maruyama(sigma: Tensor, sigma_next: Tensor, variance: Tensor) -> Coefficients:
    r"""Return (a, b, s) of Euler-Maruyama steps with noise of variance $\Sigma$: Eq. 7 / 23, sign and score corrected.

    $$x' = x - v\,\Delta + \tfrac{\Sigma}{2}\,\mathrm{score} + \sqrt{\Sigma}\,\varepsilon$$

    $$a = 1 - \frac{\Sigma}{2\sigma},\qquad b = -\Delta - \frac{\Sigma(1-\sigma)}{2\sigma},\qquad s = \sqrt{\Sigma}$$
    """
    half = variance / (2 * sigma)
    return 1 - half, -(sigma - sigma_next) - half * (1 - sigma), variance.sqrt()


def frozen_x0(sigma: Tensor, sigma_next: Tensor, rho: Tensor, rest: Tensor) -> Coefficients:
    r"""Return (a, b, s) of steps that hold the clean estimate, keep a part $\rho$ of the noise and renew the rest.

    $$x' = (1-\sigma')\,\hat x_0 + \sigma'\left(\rho\,\hat z + \sqrt{1-\rho^2}\,\varepsilon\right)$$

    $$a = 1 - \sigma' + \rho\sigma',\qquad b = -\sigma(1-\sigma') + \rho\sigma'(1-\sigma),
    \qquad s = \sigma'\sqrt{1-\rho^2}$$

    with $\hat x_0 = x - \sigma v$ and $\hat z = x + (1-\sigma)v$. The noise level after the step is exactly $\sigma'$.
    `rest` is $\sqrt{1-\rho^2}$, which the caller can compute with less rounding.
    """
    kept = rho * sigma_next
    b = -sigma * (1 - sigma_next) + kept * (1 - sigma)
    return (1 - sigma_next) + kept, b, sigma_next * rest


def frozen_x0_of_log(sigma: Tensor, sigma_next: Tensor, log_rho: Tensor) -> Coefficients:
    r"""Return (a, b, s) of `frozen_x0` from $\log\rho$, accurate for tiny steps, where $\rho$ rounds to 1."""
    return frozen_x0(sigma, sigma_next, log_rho.exp(), (-torch.expm1(2 * log_rho)).sqrt())


def extrapolated(a: Tensor, b: Tensor, sigmas: Tensor) -> Coefficients:
    r"""Return (a, b, e) of second order, with the clean estimate extrapolated on a line in log-SNR.

    The log-SNR is $\lambda = \log\frac{1-\sigma}{\sigma}$. Over a step of length $h$ in $\lambda$, after one of length
    $h_-$, the mean of the clean estimate is

    $$D = (1+r)\,\hat x_0 - r\,\hat x_0^-,\qquad r = \frac{h}{2h_-}$$

    and $x' = (a + b/\sigma)\,x - (b/\sigma)\,D + s\,\varepsilon$. The first two steps and the last one, where $\lambda$
    is infinite at an end, stay of first order. $\hat x_0^-$ comes from the rollout and is equal for all policies, so
    log-ratio and KL still need only $k = b/s$.
    """
    h = -torch.logit(sigmas).diff()
    r = torch.cat([torch.zeros_like(h[:1]), h[1:] / (2 * h[:-1])])
    r = torch.where(r.isfinite(), r, torch.zeros_like(r))
    e = r * b / sigmas[:-1]
    return a - e, (1 + r) * b, e
