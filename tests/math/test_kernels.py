"""Kernels against the reference's own numbers, the closed-form oracle, and the contract of all kernels."""

import json
import math
from pathlib import Path

import pytest

pytest.importorskip("hypothesis")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_contract import CONTRACT
from oracle import full_grid_error, interior_error, order
from sage_grpo.math import kernels
from sage_grpo.math.kernels import CLAMP, KERNELS, kernel, kernel_table
from sage_grpo.math.schedule import short_tail, sigma_schedule, stochastic_window
from sage_grpo.math.steps import euler_maruyama, frozen_x0

SHIPPED = ("ode", "dance", "flow", "sage", "cps", "precise", "dance_precise", "cps_unscaled")
schedules = st.tuples(st.integers(2, 1000), st.floats(0.5, 17))
GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "kernel_steps.json").read_text())


@kernel()
def half_way(sigma, sigma_next, eta):
    """A kernel written here, as a user would: it must get the whole contract without being named anywhere."""
    return euler_maruyama(sigma, sigma_next, 0.5 * eta**2 * (sigma**2 - sigma_next**2))


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", list(KERNELS))
def test_contract(name, check):
    check(name)


def test_registered_kernels_are_under_contract():
    assert set(KERNELS) == {*SHIPPED, "half_way"}


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        # noise √2 too strong without its drift: does not keep the marginals
        (lambda s, n, e: (*euler_maruyama(s, n, e**2 * (s - n))[:2], (2 * e**2 * (s - n)).sqrt()), 0),
        # the printed direction of the ODE (Eq. 7)
        (lambda s, n, e: (torch.ones_like(s), s - n, torch.zeros_like(s)), 3),
        # FlowGRPO's variance without its end-point rule: infinite at σ = 1
        (lambda s, n, e: euler_maruyama(s, n, e**2 * (s - n) * s / (1 - s)), 3),
    ],
    ids=["wrong variance", "wrong direction", "infinite"],
)
@pytest.mark.slow  # seconds, where a fault is found late
def test_contract_catches_a_broken_kernel(monkeypatch, fault, check):
    monkeypatch.setitem(KERNELS, "broken", kernels.Kernel(fault, converges=True, holds_x0=False))
    with pytest.raises(AssertionError):
        CONTRACT[check]("broken")


def _golden_steps():
    for case in GOLDEN["cases"]:
        for name, step in case["kernels"].items():
            yield pytest.param(case, name, step, id=f"{name}-{case['steps']}-{case['eta']}-{case['index']}")


@pytest.mark.parametrize(("case", "name", "step"), list(_golden_steps()))
def test_parity_with_the_reference(case, name, step):
    x, v, noise, mean = (
        torch.tensor(values, dtype=torch.float64)
        for values in (GOLDEN["x"], GOLDEN["v"], GOLDEN["noise"], step["mean"])
    )
    table, i, std = (
        kernel_table(name, sigma_schedule(case["steps"], case["shift"]), case["eta"]),
        case["index"],
        step["std"],
    )
    assert table.sigma[i].item() == pytest.approx(case["sigma"], abs=1e-15)
    a, b, s = (column[i] for column in (table.a, table.b, table.s))
    if name == "sage" and case["sigma"] == 1:
        # The reference clamps σ in the logarithm only; we integrate both terms up to the same end.
        end = min(CLAMP, (1 - case["sigma_next"]) / 2)
        expected = case["eta"] ** 2 * (end + math.log(CLAMP / end))
        assert s.item() ** 2 - std**2 == pytest.approx(expected, abs=1e-12)
        # Given the reference's own variance, mean and density agree too.
        a, b, s = euler_maruyama(table.sigma[0], table.sigma_next[0], torch.tensor(std**2, dtype=torch.float64))
    torch.testing.assert_close(a * x + b * v, mean, rtol=0, atol=1e-12)
    assert s.item() == pytest.approx(std, abs=1e-12)
    if std > 0:
        following = a * x + b * v + s * noise
        log_prob = torch.distributions.Normal(a * x + b * v, s).log_prob(following).mean()
        assert log_prob.item() == pytest.approx(step["log_prob"], abs=1e-12)


def test_parity_covers_everything():
    assert len(GOLDEN["cases"]) == 60
    named = set(SHIPPED) - {"ode", "cps_unscaled"}  # the latter has the table of cps (tests/core/test_cps_unscaled.py)
    assert all(set(case["kernels"]) == named for case in GOLDEN["cases"])


@pytest.mark.parametrize(
    ("s0", "steps", "eta", "expected"),
    [  # ode, dance, flow, sage, cps, precise
        (0.05, 10, 0.7, (0.046, 0.453, 0.301, 0.163, 0.046, 0.046)),
        (0.05, 20, 1.0, (0.041, 0.938, 0.242, 0.123, 0.041, 0.041)),
        (0.05, 40, 1.0, (0.032, 1.242, 0.084, 0.035, 0.033, 0.032)),
        (1.0, 20, 0.7, (0.120, 0.103, 0.086, 0.088, 0.252, 0.143)),
        (1.0, 40, 1.0, (0.062, 0.044, 0.037, 0.038, 0.347, 0.093)),
    ],
)
def test_end_state_error_of_the_closed_form(s0, steps, eta, expected):
    assert tuple(round(full_grid_error(name, s0, steps, eta), 3) for name in SHIPPED[:6]) == expected


@pytest.mark.parametrize(
    ("steps", "eta", "first", "second"),
    [
        (10, 0.0, 0.229, 0.139),
        (10, 0.7, 0.254, 0.145),
        (10, 1.0, 0.277, 0.152),
        (20, 0.0, 0.120, 0.012),
        (20, 0.7, 0.143, 0.004),
        (20, 1.0, 0.165, 0.004),
    ],
)
def test_end_state_error_of_second_order(steps, eta, first, second):
    """Ten steps of second order are as near as twenty of first."""
    errors = [full_grid_error("precise", 1.0, steps, eta, order=degree) for degree in (1, 2)]
    assert [round(error, 3) for error in errors] == [first, second]


def test_second_order_near_a_thin_manifold():
    errors = [full_grid_error("precise", 0.05, 10, 0.7, order=degree) for degree in (1, 2)]
    assert errors[1] == pytest.approx(errors[0], rel=0.01)


@pytest.mark.parametrize("s0", [0.3, 1.0])
@pytest.mark.parametrize("name", ["ode", "precise"])
def test_the_extrapolated_form_has_order_two(name, s0):
    errors = [interior_error(name, s0, steps, 0.7, 2) for steps in (256, 1024)]
    assert order(*errors, refinement=4) == pytest.approx(2.0, abs=0.3)


def test_the_extrapolated_form_by_its_definition():
    """Against the step as it is written down, with the clean estimates of two steps."""
    sigmas, generator = sigma_schedule(12, 3.0), torch.Generator().manual_seed(0)
    x, v, before, noise = torch.randn(4, 5, generator=generator, dtype=torch.float64)
    table = kernel_table("precise", sigmas, 0.7, 2)
    level = torch.log((1 - sigmas) / sigmas)
    for t in range(2, 11):
        s, n = sigmas[t], sigmas[t + 1]
        r = (level[t + 1] - level[t]) / (2 * (level[t] - level[t - 1]))
        clean = (1 + r) * (x - s * v) - r * before
        rho = (n * (1 - s) / (s * (1 - n))) ** (0.7**2 / 2)
        expected = (1 - n) * clean + n * (rho * (x - (1 - s) * clean) / s + (1 - rho**2).sqrt() * noise)
        found = table.a[t] * x + table.b[t] * v + table.e[t] * before + table.s[t] * noise
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("eta", [0.5, 0.7, 1.0])
@pytest.mark.parametrize("s0", [0.3, 1.0])
def test_order_on_the_full_grid(s0, eta):
    def measured(name):
        return order(*(full_grid_error(name, s0, steps, eta) for steps in (1024, 4096)), refinement=4)

    for name in ("ode", "dance", "precise"):
        assert measured(name) == pytest.approx(1.0, abs=0.05), name
    if eta == 1.0:
        for name in ("flow", "sage"):
            assert measured(name) == pytest.approx(1.0, abs=0.05), name
    for name in ("flow", "sage"):  # at small η the singular end leaves a term of lower order
        assert full_grid_error(name, s0, 4096, eta) < 1.5e-3, name
    assert 0.4 <= round(measured("dance_precise"), 1) <= 0.8
    assert 0.02 < full_grid_error("cps", s0, 4096, eta) < 0.30


@settings(max_examples=200, deadline=None)
@given(schedule=schedules, eta=st.floats(0.05, 2))
def test_sage_variance_is_positive_and_additive(schedule, eta):
    sigmas = sigma_schedule(*schedule)
    variance = kernel_table("sage", sigmas, eta).s ** 2
    assert (variance > 0).all()
    # Split every step that starts below the clamp at its middle: the parts add up to the whole.
    whole = sigmas[:-1] <= 1 - CLAMP
    middle = (sigmas[:-1] + sigmas[1:]) / 2
    first = kernels.sage(sigmas[:-1], middle, eta)[2] ** 2
    second = kernels.sage(middle, sigmas[1:], eta)[2] ** 2
    torch.testing.assert_close((first + second)[whole], variance[whole], rtol=1e-8, atol=1e-15)


@settings(max_examples=200, deadline=None)
@given(schedule=schedules, eta=st.floats(0.05, 2))
def test_precise_has_no_clamp(schedule, eta):
    """Its transitions compose: two half steps of the exact solution are the whole step, up to σ = 1."""
    sigmas = sigma_schedule(*schedule)
    start, end = sigmas[:-2], sigmas[1:-1]  # at σ' = 0 nothing is left to compare
    middle = (start + end) / 2

    def rho(s, n):  # a = (1-σ') + ρσ'
        return (kernels.precise(s, n, eta)[0] - (1 - n)) / n

    torch.testing.assert_close(rho(start, end), rho(start, middle) * rho(middle, end), rtol=1e-6, atol=1e-9)
    assert rho(sigmas[:1], sigmas[1:2]).abs().item() < 1e-9  # all noise is fresh at σ = 1


def test_noise_after_a_step_with_a_perfect_denoiser():
    """n'² = σ'² + ΣΔ/σ + Σ²/(4σ²) for Euler kernels, exactly σ' for frozen-x̂0 kernels."""
    sigmas = sigma_schedule(20, 5.0)
    for name in SHIPPED:
        t = kernel_table(name, sigmas, 0.7)
        # x = (1-σ)x0 + σz and v = z - x0: noise coefficient is aσ + b, signal coefficient a(1-σ) - b
        noise = (t.a * t.sigma + t.b).square() + t.s.square()
        extra = torch.zeros_like(noise)
        if name in ("dance", "flow", "sage"):
            variance = t.s.square()
            extra = variance * (t.sigma - t.sigma_next) / t.sigma + variance.square() / (4 * t.sigma**2)
        torch.testing.assert_close(noise, t.sigma_next.square() + extra, rtol=1e-12, atol=1e-14)


def test_mixed_ode_sde():
    table = kernel_table("sage", sigma_schedule(10, 3.0), 0.7)
    mixed = table.ode_outside(stochastic_window(10, size=3, start=4))
    assert mixed.stochastic.nonzero().flatten().tolist() == [4, 5, 6]
    torch.testing.assert_close(mixed.b[:4], table.sigma_next[:4] - table.sigma[:4], rtol=0, atol=0)
    torch.testing.assert_close(mixed.s[4:7], table.s[4:7], rtol=0, atol=0)
    assert (mixed.k[[0, 9]] == 0).all()


def test_mixed_with_an_ode_of_second_order():
    sigmas, window = sigma_schedule(10, 3.0), stochastic_window(10, size=3, start=4)
    mixed, plain = kernel_table("sage", sigmas, 0.7, 2).ode_outside(window), kernel_table("ode", sigmas, 0.0, 2)
    inside = kernel_table("sage", sigmas, 0.7)
    for name in ("a", "b", "s", "e"):
        expected = torch.where(window, getattr(inside, name), getattr(plain, name))
        torch.testing.assert_close(getattr(mixed, name), expected, rtol=0, atol=0)
    assert (mixed.e != 0).tolist() == [False, False, True, True, False, False, False, True, True, False]


@given(schedules, st.floats(0.01, 1), st.data())
@settings(max_examples=100, deadline=None)
def test_a_short_tail(schedule, share, data):
    steps, shift = schedule
    end = data.draw(st.integers(1, steps))
    whole, short = sigma_schedule(steps, shift), short_tail(steps, shift, end, share)
    assert torch.equal(short[: end + 1], whole[: end + 1])
    assert short[-1] == 0
    assert (short.diff() < 0).all()
    assert len(short) - 1 - end == math.ceil(round(share * (steps - end), 6))
    assert torch.equal(short_tail(steps, shift, end, 1.0), whole)
    even = short_tail(20, shift, 10, 0.5)  # every second one of those that were left
    torch.testing.assert_close(even[10:], sigma_schedule(20, shift)[10::2])


def test_frozen_x0_with_rho_one_is_the_ode():
    sigmas = sigma_schedule(10, 3.0)
    one = torch.ones(10, dtype=torch.float64)
    frozen, exact = frozen_x0(sigmas[:-1], sigmas[1:], one, 0 * one), kernels.ode(sigmas[:-1], sigmas[1:], 0)
    torch.testing.assert_close(list(frozen), list(exact), rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sgae", 0.5), "did you mean 'sage'"),
        (("sage", -1.0), "eta=-1.0"),
        (("sage", float("nan")), "eta=nan"),
        (("cps", 1.5), "use 0 to 1"),
    ],
)
def test_errors_say_what_to_do(arguments, message):
    name, eta = arguments
    with pytest.raises(ValueError, match=message):
        kernel_table(name, sigma_schedule(10), eta)


@pytest.mark.parametrize("arguments", [(0, 1.0), (10, 0.0), (10, -2.0)])
def test_schedule_refuses_nonsense(arguments):
    with pytest.raises(ValueError, match="use at least one step"):
        sigma_schedule(*arguments)


@pytest.mark.parametrize(("size", "start"), [(0, 0), (11, 0), (3, 8), (3, -1)])
def test_window_must_fit(size, start):
    with pytest.raises(ValueError, match="does not fit into 10 steps"):
        stochastic_window(10, size, start)


@given(schedules)
@settings(max_examples=100, deadline=None)
def test_schedule_runs_from_noise_to_data(schedule):
    sigmas = sigma_schedule(*schedule)
    assert sigmas[0] == 1
    assert sigmas[-1] == 0
    assert (sigmas.diff() < 0).all()
