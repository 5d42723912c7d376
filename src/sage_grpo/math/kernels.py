r"""Kernels: coefficients (a, b, s) of sampling steps, which are affine: $x' = a\,x + b\,v + s\,\varepsilon$.

A kernel of second order has another coefficient, for the clean estimate of the step before: $+\,e\,\hat x_0^-$.

With $x_\sigma = (1-\sigma)x_0 + \sigma z$ the network predicts $v = dx/d\sigma = z - x_0$ (Eq. 1-3), so
$\hat x_0 = x - \sigma v$ and the score is $-(x - (1-\sigma)\hat x_0)/\sigma^2 = -(x + (1-\sigma)v)/\sigma$. A step goes
from $\sigma$ down to $\sigma'$; let $\Delta = \sigma - \sigma'$. To add a kernel, write one function and put
`@kernel()` above it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sage_grpo.math.steps import Coefficients, euler_maruyama, extrapolated, frozen_x0, frozen_x0_of_log
from sage_grpo.suggest import did_you_mean

KernelFunction = Callable[[Tensor, Tensor, float], Coefficients]

CLAMP = 3e-3  # how near σ = 1 the reference lets the noise integral come


@dataclass(frozen=True)
class Kernel:
    """A registered kernel: the function that gives its coefficients, and the properties that tables and tests use."""

    function: KernelFunction
    converges: bool
    """Whether its samples converge to the marginals of the flow, as the number of steps grows."""
    holds_x0: bool
    r"""Whether a step takes only the clean estimate $\hat x_0$ as constant. Extrapolating it gives a form of second
    order."""
    scaled: bool = True
    """Whether the kernel's log-likelihood is divided by $2s^2$, as that of a Gaussian is."""


KERNELS: dict[str, Kernel] = {}


def kernel(
    *, converges: bool = True, holds_x0: bool = False, scaled: bool = True
) -> Callable[[KernelFunction], KernelFunction]:
    r"""Register a function $(\sigma, \sigma', \eta) \mapsto (a, b, s)$ as a kernel: put `@kernel()` above it.

    `converges` is false for noise that does not shrink with the step. `holds_x0` is true for an exact solution of its
    SDE for a fixed $\hat x_0$: such a kernel has a form of second order. `scaled` is false where the log-likelihood is
    $-\lVert x' - \mathrm{mean}\rVert^2$ alone.

    Examples:
        >>> from sage_grpo import kernel, kernel_table, sigma_schedule
        >>> @kernel()
        ... def constant(sigma, sigma_next, eta):  # x' = x + (σ' - σ) v + s ε
        ...     return 1 + 0 * sigma, sigma_next - sigma, eta + 0 * sigma
        >>> kernel_table("constant", sigma_schedule(2), eta=0.1).s.tolist()
        [0.1, 0.1]
    """

    def register(function: KernelFunction) -> KernelFunction:
        known = KERNELS.get(function.__name__)
        if known and known.function.__module__ != function.__module__:
            raise ValueError(f"kernel {function.__name__!r} is already registered, by {known.function.__module__}")
        KERNELS[function.__name__] = Kernel(function, converges, holds_x0, scaled)
        return function

    return register


@dataclass(frozen=True)
class KernelTable:
    """The coefficients of a sampler's T steps: six float64 vectors (T,), with one entry per step."""

    sigma: Tensor
    r"""Noise level $\sigma$ at which the step starts."""
    sigma_next: Tensor
    r"""Noise level $\sigma'$ at which the step ends."""
    a: Tensor
    """Weight of the latents."""
    b: Tensor
    """Weight of the velocity."""
    s: Tensor
    """Size of the fresh noise."""
    e: Tensor
    r"""Weight of $\hat x_0^-$, the clean estimate of the step before; 0 in a table of first order."""
    order: int
    """Order of the sampler, 1 or 2. Order 2 applies to steps without noise, and to kernels with a form of second
    order."""
    scaled: bool = True
    """Whether the log-likelihood of a step is divided by $2s^2$."""

    def __len__(self) -> int:
        return len(self.sigma)

    @property
    def stochastic(self) -> Tensor:
        """Mask (T,) of the steps with noise. The other steps carry neither loss nor KL."""
        return self.s > 0

    @property
    def k(self) -> Tensor:
        """$k = b/s$ of each step (T,), the only number that log-ratio and KL need; 0 for deterministic steps."""
        return torch.where(self.stochastic, self.b / self.s, torch.zeros_like(self.s))

    @property
    def scale(self) -> Tensor:
        """Factor of each step's log-ratio (T,): 1, or $2s^2$ if the log-likelihood is not divided by $2s^2$."""
        return torch.ones_like(self.s) if self.scaled else 2 * self.s.square()

    @property
    def prefix(self) -> int:
        """Number of steps before the first stochastic one. Rollouts with equal initial noise are equal up to there."""
        return int(self.stochastic.int().argmax()) if self.stochastic.any() else len(self)

    def ode_outside(self, window: Tensor) -> "KernelTable":
        """Return the table with plain ODE steps wherever the mask `window` (T,) is false (mixed ODE-SDE)."""
        plain = kernel_table("ode", torch.cat([self.sigma, self.sigma_next[-1:]]), 0.0, self.order)
        return replace(
            self,
            a=torch.where(window, self.a, plain.a),
            b=torch.where(window, self.b, plain.b),
            s=torch.where(window, self.s, plain.s),
            e=torch.where(window, self.e, plain.e),
        )


def kernel_table(name: str, sigmas: Tensor, eta: float, order: int = 1) -> KernelTable:
    r"""Return the table of the kernel `name` along the noise levels `sigmas`, with noise of strength $\eta$.

    Args:
        name: Name of a registered kernel, such as `sage`.
        sigmas: Noise levels from 1 to 0 (T + 1,), by `sigma_schedule`.
        eta: Strength of the noise; 0 gives the plain ODE under any name.
        order: 1, or 2 to extrapolate the clean estimate in kernels with `holds_x0`; other kernels stay as they are.

    Examples:
        >>> from sage_grpo import kernel_table, sigma_schedule
        >>> kernel_table("sage", sigma_schedule(4, shift=3.0), eta=0.7).s
        tensor([1.2925, 0.6128, 0.4660, 0.3076], dtype=torch.float64)
    """
    if name not in KERNELS:
        raise ValueError(f"unknown kernel {name!r}; {did_you_mean(name, KERNELS)}")
    if not (math.isfinite(eta) and eta >= 0):
        raise ValueError(f"eta={eta}: use a number from 0 (plain ODE) upwards")
    sigma, sigma_next = sigmas[:-1].double(), sigmas[1:].double()
    # Without noise every kernel is the ODE; asking the formulas would divide 0 by 0.
    chosen = KERNELS[name if eta > 0 else "ode"]
    a, b, s = chosen.function(sigma, sigma_next, eta)
    e = torch.zeros_like(s)
    if order == 2 and chosen.holds_x0:
        a, b, e = extrapolated(a, b, sigmas.double())
    return KernelTable(sigma, sigma_next, a, b, s, e, order, chosen.scaled)


@kernel(holds_x0=True)
def ode(sigma: Tensor, sigma_next: Tensor, eta: float) -> Coefficients:
    r"""The probability-flow ODE (Eq. 1), one Euler step: $a = 1$, $b = -\Delta$, $s = 0$.

    It equals `frozen_x0` with $\rho = 1$, without the rounding.
    """
    return torch.ones_like(sigma), sigma_next - sigma, torch.zeros_like(sigma)


@kernel()
def dance(sigma: Tensor, sigma_next: Tensor, eta: float) -> Coefficients:
    r"""DanceGRPO (Table 1): `euler_maruyama` with $\Sigma = \eta^2\Delta$."""
    return euler_maruyama(sigma, sigma_next, eta**2 * (sigma - sigma_next))


@kernel()
def flow(sigma: Tensor, sigma_next: Tensor, eta: float) -> Coefficients:
    r"""FlowGRPO (Table 1): `euler_maruyama` with $\Sigma = \eta^2\Delta\,\sigma/(1-\sigma)$.

    At $\sigma = 1$ the denominator is taken at $\sigma'$.
    """
    denominator = 1 - torch.where(sigma >= 1, sigma_next, sigma)
    return euler_maruyama(sigma, sigma_next, eta**2 * (sigma - sigma_next) * sigma / denominator)


@kernel()
def sage(sigma: Tensor, sigma_next: Tensor, eta: float) -> Coefficients:
    r"""SAGE-GRPO (Eq. 5 / 21): `euler_maruyama` with the exact integral of the noise over the step.

    $$\Sigma = \eta^2\int_{\sigma'}^{\sigma}\frac{u}{1-u}\,du
    = \eta^2\left[\log\frac{1-\sigma'}{1-\sigma} - \Delta\right]$$

    The integral diverges at $\sigma = 1$, so its upper end stops at $1-\delta$. Both terms use that end, and $\delta$
    never exceeds half of $1-\sigma'$: $\Sigma$ is positive for every schedule.
    """
    delta = (0.5 * (1 - sigma_next)).clamp(max=CLAMP)
    top = torch.minimum(sigma, 1 - delta)
    span = top - sigma_next
    return euler_maruyama(sigma, sigma_next, eta**2 * (torch.log1p(span / (1 - top)) - span))


@kernel(converges=False)
def cps(sigma: Tensor, sigma_next: Tensor, eta: float) -> Coefficients:
    r"""Coefficients-preserving sampling: `frozen_x0` with $\rho = \cos(\eta\pi/2)$.

    Its noise does not shrink as steps get shorter.
    """
    if eta > 1:
        raise ValueError(f"eta={eta}: kernel 'cps' rotates noise by eta·90°, use 0 to 1")
    angle = torch.full_like(sigma, eta * math.pi / 2)
    return frozen_x0(sigma, sigma_next, angle.cos(), angle.sin())


@kernel(converges=False, scaled=False)
def cps_unscaled(sigma: Tensor, sigma_next: Tensor, eta: float) -> Coefficients:
    r"""`cps` with the log-likelihood of its paper and of the released code: $-\lVert x' - \mathrm{mean}\rVert^2$.

    Without $1/2s^2$ the log-ratio of a step is $2s^2$ times that of `cps`, so late steps, with little noise, weigh
    less. KL and equalizer are those of `cps`. The objective `guard` has a ratio of its own, without this factor.
    """
    return cps(sigma, sigma_next, eta)


@kernel(holds_x0=True)
def precise(sigma: Tensor, sigma_next: Tensor, eta: float) -> Coefficients:
    r"""The exact solution of SAGE's SDE (Eq. 16 with $\epsilon^2 = \eta^2\sigma/(1-\sigma)$) for a fixed $\hat x_0$.

    `frozen_x0` with

    $$\rho = \left[\frac{\sigma'(1-\sigma)}{\sigma(1-\sigma')}\right]^{\eta^2/2}$$

    which is finite at $\sigma = 1$, needs no clamp and leaves no noise at $\sigma' = 0$.
    """
    odds = sigma_next * (1 - sigma) / (sigma * (1 - sigma_next))
    return frozen_x0_of_log(sigma, sigma_next, 0.5 * eta**2 * odds.log())


@kernel(holds_x0=True)
def dance_precise(sigma: Tensor, sigma_next: Tensor, eta: float) -> Coefficients:
    r"""The exact solution of DanceGRPO's SDE, with constant noise, for a fixed $\hat x_0$: `frozen_x0` with

    $$\rho = \exp\left(-\frac{\eta^2}{2}\left(\frac{1}{\sigma'} - \frac{1}{\sigma}\right)\right)$$
    """
    return frozen_x0_of_log(sigma, sigma_next, -0.5 * eta**2 * (1 / sigma_next - 1 / sigma))
