r"""One sampling step is affine: $x' = a\,x + b\,v + s\,\varepsilon$. A kernel is its table (a, b, s).

With $x_\sigma = (1-\sigma)x_0 + \sigma z$ the network predicts $v = dx/d\sigma = z - x_0$ (Eq. 1-3), so
$\hat x_0 = x - \sigma v$ and the score is $-(x - (1-\sigma)\hat x_0)/\sigma^2 = -(x + (1-\sigma)v)/\sigma$.
A step goes from σ down to σ'. To add a kernel, write one function and put `@kernel()` above it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sage_grpo.suggest import did_you_mean

Coefficients = tuple[Tensor, Tensor, Tensor]
KernelFunction = Callable[[Tensor, Tensor, float], Coefficients]

CLAMP = 3e-3  # how near σ = 1 the reference lets the noise integral come


@dataclass(frozen=True)
class Kernel:
    function: KernelFunction
    converges: bool  # to the marginals of the flow, as the number of steps grows


KERNELS: dict[str, Kernel] = {}


def kernel(*, converges: bool = True) -> Callable[[KernelFunction], KernelFunction]:
    """Register a function (σ, σ', η) → (a, b, s) under its own name."""

    def register(function: KernelFunction) -> KernelFunction:
        KERNELS[function.__name__] = Kernel(function, converges)
        return function

    return register


@dataclass(frozen=True)
class KernelTable:
    """The sampler as five float64 vectors, one entry a step."""

    sigma: Tensor
    sigma_next: Tensor
    a: Tensor
    b: Tensor
    s: Tensor

    def __len__(self) -> int:
        return len(self.sigma)

    @property
    def stochastic(self) -> Tensor:
        return self.s > 0

    @property
    def k(self) -> Tensor:
        """b/s, the only number that log-ratio and KL need; 0 on deterministic steps."""
        return torch.where(self.stochastic, self.b / self.s, torch.zeros_like(self.s))

    def ode_outside(self, window: Tensor) -> "KernelTable":
        """Take the plain ODE step wherever `window` is false (mixed ODE-SDE)."""
        a, b, s = ode(self.sigma, self.sigma_next, 0.0)
        mixed = {"a": (self.a, a), "b": (self.b, b), "s": (self.s, s)}
        return replace(self, **{name: torch.where(window, *pair) for name, pair in mixed.items()})


def kernel_table(name: str, sigmas: Tensor, eta: float) -> KernelTable:
    """The table of kernel `name` along the schedule `sigmas` with noise level η."""
    if name not in KERNELS:
        raise ValueError(f"unknown kernel {name!r}; {did_you_mean(name, KERNELS)}")
    if not (math.isfinite(eta) and eta >= 0):
        raise ValueError(f"eta={eta}: use a number from 0 (plain ODE) upwards")
    sigma, sigma_next = sigmas[:-1].double(), sigmas[1:].double()
    # Without noise every kernel is the ODE; asking the formulas would divide 0 by 0.
    function = KERNELS[name].function if eta > 0 else ode
    return KernelTable(sigma, sigma_next, *function(sigma, sigma_next, eta))


def euler_maruyama(sigma: Tensor, sigma_next: Tensor, variance: Tensor) -> Coefficients:
    """Eq. 7 / 23 with the sign and the score corrected: x' = x - vΔ + (Σ/2)·score + √Σ·ε."""
    half = variance / (2 * sigma)
    return 1 - half, -(sigma - sigma_next) - half * (1 - sigma), variance.sqrt()


def frozen_x0(sigma: Tensor, sigma_next: Tensor, rho: Tensor, rest: Tensor) -> Coefficients:
    """x' = (1-σ')·x̂0 + σ'·(ρ·ẑ + √(1-ρ²)·ε), with rest = √(1-ρ²): keeps exactly σ' of noise."""
    kept = rho * sigma_next
    b = -sigma * (1 - sigma_next) + kept * (1 - sigma)
    return (1 - sigma_next) + kept, b, sigma_next * rest


def _from_log_rho(sigma: Tensor, sigma_next: Tensor, log_rho: Tensor) -> Coefficients:
    # expm1 keeps √(1-ρ²) accurate for tiny steps, where ρ rounds to 1
    return frozen_x0(sigma, sigma_next, log_rho.exp(), (-torch.expm1(2 * log_rho)).sqrt())


@kernel()
def ode(sigma: Tensor, sigma_next: Tensor, eta: float) -> Coefficients:
    """The probability-flow ODE (Eq. 1), one Euler step: `frozen_x0` with ρ = 1, free of its rounding."""
    return torch.ones_like(sigma), sigma_next - sigma, torch.zeros_like(sigma)


@kernel()
def dance(sigma: Tensor, sigma_next: Tensor, eta: float) -> Coefficients:
    """DanceGRPO (Table 1): Σ = η²Δ."""
    return euler_maruyama(sigma, sigma_next, eta**2 * (sigma - sigma_next))


@kernel()
def flow(sigma: Tensor, sigma_next: Tensor, eta: float) -> Coefficients:
    """FlowGRPO (Table 1): Σ = η²Δσ/(1-σ); at σ = 1 the denominator is taken at σ'."""
    denominator = 1 - torch.where(sigma >= 1, sigma_next, sigma)
    return euler_maruyama(sigma, sigma_next, eta**2 * (sigma - sigma_next) * sigma / denominator)


@kernel()
def sage(sigma: Tensor, sigma_next: Tensor, eta: float) -> Coefficients:
    """Eq. 5 / 21: Σ = η²[-Δ + log((1-σ')/(1-σ))], the exact integral of η²u/(1-u) over the step.

    The integral diverges at σ = 1, so its upper end stops at 1-δ. Both terms use that end and δ
    never exceeds half of 1-σ': Σ is positive for every schedule.
    """
    delta = (0.5 * (1 - sigma_next)).clamp(max=CLAMP)
    top = torch.minimum(sigma, 1 - delta)
    span = top - sigma_next
    return euler_maruyama(sigma, sigma_next, eta**2 * (torch.log1p(span / (1 - top)) - span))


@kernel(converges=False)
def cps(sigma: Tensor, sigma_next: Tensor, eta: float) -> Coefficients:
    """Coefficients-preserving sampling: ρ = cos(ηπ/2). Its noise does not shrink with the step."""
    if eta > 1:
        raise ValueError(f"eta={eta}: kernel 'cps' rotates noise by eta·90°, use 0 to 1")
    angle = torch.full_like(sigma, eta * math.pi / 2)
    return frozen_x0(sigma, sigma_next, angle.cos(), angle.sin())


@kernel()
def precise(sigma: Tensor, sigma_next: Tensor, eta: float) -> Coefficients:
    """The exact solution of SAGE's SDE (Eq. 16 with ε² = η²σ/(1-σ)) when x̂0 is held fixed.

    ρ = [σ'(1-σ) / (σ(1-σ'))]^(η²/2): finite at σ = 1, no clamp, no noise left at σ' = 0.
    """
    odds = sigma_next * (1 - sigma) / (sigma * (1 - sigma_next))
    return _from_log_rho(sigma, sigma_next, 0.5 * eta**2 * odds.log())


@kernel()
def dance_precise(sigma: Tensor, sigma_next: Tensor, eta: float) -> Coefficients:
    """The same for DanceGRPO's constant noise: ρ = exp(-η²/2·(1/σ' - 1/σ))."""
    return _from_log_rho(sigma, sigma_next, -0.5 * eta**2 * (1 / sigma_next - 1 / sigma))
