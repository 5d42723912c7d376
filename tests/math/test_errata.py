"""Where the paper's text and sound practice differ: the printed form fails, the shipped form passes."""

import math

import pytest
import torch

from oracle import marginal, order, propagate
from sage_grpo.math import kernels
from sage_grpo.math.advantage import weighted_reward
from sage_grpo.math.controller import KLRule, KLWeight, next_weight
from sage_grpo.math.gaussian import kl, log_ratio
from sage_grpo.math.kernels import CLAMP, KernelTable, kernel_table
from sage_grpo.math.loss import sage_loss
from sage_grpo.math.schedule import sigma_schedule


@pytest.fixture
def path():
    """A clean sample, its noise, and the straight line between them."""
    generator = torch.Generator().manual_seed(0)
    x0, z = torch.randn(2, 64, generator=generator, dtype=torch.float64)
    return x0, z, lambda sigma: (1 - sigma) * x0 + sigma * z


def test_eq_3_velocity(path):
    """v = (x - x0)/σ is z - x0; the printed (x - x0)/(1-σ) is not."""
    x0, z, x = path
    sigma = 0.7
    shipped, printed = (x(sigma) - x0) / sigma, (x(sigma) - x0) / (1 - sigma)
    torch.testing.assert_close(shipped, z - x0)
    assert (printed - (z - x0)).abs().max() > 1
    # and the kernels read x̂0 = x - σv out of it
    torch.testing.assert_close(x(sigma) - sigma * shipped, x0)


def test_eq_7_direction(path):
    """A step with -vΔ stays on the line towards the data; +vΔ walks back into the noise."""
    x0, z, x = path
    sigma, following = torch.tensor([0.7, 0.6], dtype=torch.float64)
    a, b, _ = kernels.ode(sigma, following, 0.0)
    torch.testing.assert_close(a * x(sigma) + b * (z - x0), x(following))
    printed = x(sigma) + (z - x0) * (sigma - following)
    torch.testing.assert_close(printed, x(sigma + 0.1))


def test_score_of_the_marginal():
    """-(x-(1-σ)x̂0)/σ² keeps the mean exactly; the printed -(x-x̂0)/σ² converges to a wrong one."""

    def end_error(steps, score_of_x, score_of_v):
        grid = torch.linspace(0.95, 0.05, steps + 1, dtype=torch.float64)
        sigma, following = grid[:-1], grid[1:]
        variance = 0.49 * (sigma - following)
        a = 1 + variance / 2 * score_of_x(sigma)
        b = -(sigma - following) + variance / 2 * score_of_v(sigma)
        mean, _ = propagate(KernelTable(sigma, following, a, b, variance.sqrt(), 0 * a, 1), 0.3, *marginal(0.95, 0.3))
        return abs(mean - marginal(0.05, 0.3)[0])

    # x̂0 = x - σv put into each form and sorted by x and v
    shipped = [end_error(n, lambda s: -1 / s, lambda s: -(1 - s) / s) for n in (256, 1024)]
    printed = [end_error(n, lambda s: 0 * s, lambda s: -1 / s) for n in (256, 1024)]
    assert max(shipped) < 1e-12
    assert abs(order(*printed, refinement=4)) < 0.1
    assert printed[1] > 0.1
    # the shipped kernel is the shipped form
    a, b, _ = kernels.dance(*torch.tensor([[0.7], [0.6]], dtype=torch.float64), 0.7)
    assert a.item() == pytest.approx(1 - 0.049 / 2 / 0.7)
    assert b.item() == pytest.approx(-0.1 - 0.049 / 2 * 0.3 / 0.7)


def test_eq_11_kl_divides_by_twice_the_variance():
    table = kernel_table("sage", sigma_schedule(20, 5.0), 0.7)
    generator = torch.Generator().manual_seed(0)
    x, v, v_ref = torch.randn(3, 1, 50, generator=generator, dtype=torch.float64)
    for i in range(len(table)):
        a, b, s = table.a[i], table.b[i], table.s[i]
        mean, mean_ref = a * x + b * v, a * x + b * v_ref
        truth = torch.distributions.kl_divergence(
            torch.distributions.Normal(mean, s), torch.distributions.Normal(mean_ref, s)
        ).mean()
        printed = ((mean - mean_ref) ** 2 / (2 * s**4)).mean()  # Σ² where Σ = s² is a variance
        assert kl(v, v_ref, table.k[i].item()).item() == pytest.approx(truth.item(), rel=1e-10)
        assert not math.isclose(printed.item(), truth.item(), rel_tol=0.1)


def test_eq_15_sample_estimate_is_noise_where_the_closed_form_is_zero():
    """At θ = old the estimate's gradient is pure noise with mean 0; the closed form's is 0."""
    k, dim, draws = -1.3, 16, 4000
    noise = torch.randn(draws, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    v_old = torch.zeros(draws, dim, dtype=torch.float64)
    v = torch.zeros(draws, dim, dtype=torch.float64, requires_grad=True)
    (printed,) = torch.autograd.grad((-log_ratio(v, v_old, noise, k, "sum")).sum(), v)
    (shipped,) = torch.autograd.grad(kl(v, v_old, k, "sum").sum(), v)
    assert shipped.abs().max() == 0
    assert printed.std() == pytest.approx(abs(k), rel=0.02)
    z = printed.mean(0) / (printed.std(0) / math.sqrt(draws))
    assert z.abs().max() < 4  # zero mean in every coordinate: it penalises nothing


@pytest.mark.parametrize(("sign", "settles"), [("lagrangian", True), ("paper", False)])
def test_eq_42_sign_of_the_feedback(sign, settles):
    """A policy whose KL falls as λ grows: the multiplier's sign finds the target, the printed one a bound."""
    rule = KLRule(low=1e-7, high=1e-3, warmup=0, feedback=sign, target=1.0)
    weight = KLWeight(1e-5)
    for _ in range(400):
        observed = 10 / (1 + weight.value / 1e-5)  # KL = target at λ = 9e-5
        weight = next_weight(weight, observed, rule)
    inside = 0.5 <= 10 / (1 + weight.value / 1e-5) <= 1.5
    assert inside == settles
    if not settles:
        assert weight.value == rule.low


def test_eq_43_sign_of_the_kl():
    """Descending the shipped loss pulls the policy to its reference; the printed minus pushes it away."""

    def distance_after_descent(kl_weight):
        v = torch.full((1, 8), 1.0, dtype=torch.float64, requires_grad=True)
        for _ in range(50):
            loss = sage_loss(torch.zeros(1), 1.0, kl_weight, kl(v, torch.zeros(1, 8), 1.0, "sum")).sum()
            (gradient,) = torch.autograd.grad(loss, v)
            v = (v - 0.1 * gradient).detach().requires_grad_()
        return v.norm().item()

    assert distance_after_descent(+1.0) < 0.1
    assert distance_after_descent(-1.0) > 10


@pytest.mark.parametrize(("shift", "first_bad"), [(5, 68), (7, 49), (9, 38)])
def test_first_step_clamp(shift, first_bad):
    """Clamping σ alone makes Σ negative (NaN) from some number of steps on; ours is positive for all."""

    def printed(steps):
        sigmas = sigma_schedule(steps, shift)
        following = sigmas[1].item()
        return -(1 - following) + math.log((1 - following) / CLAMP)

    assert printed(first_bad - 1) > 0 > printed(first_bad)
    for steps in (first_bad - 1, first_bad, 10 * first_bad):
        assert (kernel_table("sage", sigma_schedule(steps, shift), 0.7).s > 0).all()


def test_table_2_overall_is_the_unweighted_sum():
    """The first number of each row, the base model's +0.0654 among them, is VQ+MQ+TA in both settings."""
    rows = {  # overall, (VQ, MQ, TA)
        "HunyuanVideo 1.5": (0.0654, (-0.7539, -0.5870, 1.4063)),
        "A, SAGE-GRPO w/o KL": (0.4859, (-0.6104, -0.4141, 1.5104)),
        "B, SAGE-GRPO w/ dual moving KL": (0.8066, (-0.4765, -0.2384, 1.5216)),
    }
    for name, (overall, scores) in rows.items():
        tensor = torch.tensor([scores], dtype=torch.float64)
        plain, _ = weighted_reward(tensor, torch.ones(1, 3, dtype=torch.bool))
        assert plain.item() == pytest.approx(overall, abs=2e-4), name
        setting_b, _ = weighted_reward(tensor, torch.ones(1, 3, dtype=torch.bool), (0.5, 0.5, 1.0))
        assert abs(setting_b.item() - overall) > 0.1, name
