"""What every kernel owes us. A kernel that registers itself gets all of these by parametrisation."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle import full_grid_error, interior_error, order
from sage_grpo.math.equalizer import equalizer
from sage_grpo.math.kernels import KERNELS, kernel_table
from sage_grpo.math.schedule import sigma_schedule

ETAS = (0.5, 0.7, 1.0)
WIDTHS = (0.3, 1.0)


def order_on_the_interior(name: str) -> None:
    for s0 in WIDTHS:
        for eta in ETAS:
            errors = [interior_error(name, s0, steps, eta) for steps in (256, 1024)]
            measured = order(*errors, refinement=4)
            if KERNELS[name].converges:
                assert measured == pytest.approx(1.0, abs=0.2), (s0, eta, errors)
            else:
                assert measured < 0.1, (s0, eta, errors)
                assert errors[-1] > 0.01, (s0, eta, errors)


def order_of_the_extrapolated_form(name: str) -> None:
    """Two or more where the kernel has that form; a kernel without it stays what it is."""
    for s0 in WIDTHS:
        for eta in ETAS:
            plain = interior_error(name, s0, 256, eta)
            errors = [interior_error(name, s0, steps, eta, 2) for steps in (256, 1024)]
            if KERNELS[name].holds_x0:
                assert order(*errors, refinement=4) > 1.7, (s0, eta, errors)
                assert errors[0] < 0.1 * plain, (s0, eta, plain, errors)
            else:
                assert errors[0] == plain


def error_falls_on_the_full_grid(name: str) -> None:
    """Whatever the order at the singular ends, a kernel that converges gets better with more steps."""
    for s0 in WIDTHS:
        for eta in ETAS:
            rough, fine = (full_grid_error(name, s0, steps, eta) for steps in (64, 4096))
            if KERNELS[name].converges:
                assert fine < 0.02, (s0, eta, fine)
                assert fine < 0.5 * rough, (s0, eta, rough, fine)
            else:
                assert fine > 0.02, (s0, eta, fine)
            if KERNELS[name].holds_x0:
                assert full_grid_error(name, s0, 4096, eta, order=2) < 0.005, (s0, eta)


def table_is_sane_on_every_schedule(name: str) -> None:
    """Finite everywhere; noise wherever the kernel is stochastic; the velocity always points to the data."""

    @settings(max_examples=60, deadline=None)
    @given(steps=st.integers(2, 1000), shift=st.floats(0.5, 17), eta=st.floats(0.05, 1.0))
    def check(steps: int, shift: float, eta: float) -> None:
        table, second = (kernel_table(name, sigma_schedule(steps, shift), eta, degree) for degree in (1, 2))
        for t in (table, second):
            for column in (t.a, t.b, t.s, t.e, t.k, equalizer(t)):
                assert column.dtype == torch.float64
                assert column.isfinite().all()
        assert (table.e == 0).all()
        assert torch.equal(second.s, table.s)
        assert (second.b <= table.b).all()  # what is extrapolated weighs more
        assert (second.e[[0, 1, -1]] == 0).all()  # where log-SNR has no end
        assert (table.b < 0).all()
        inner = table.sigma_next > 0  # only the very last step may be free of noise
        assert (table.s[inner] > 0).all() or (table.s == 0).all()

    check()


def without_noise_it_is_the_ode(name: str) -> None:
    sigmas = sigma_schedule(12, 5.0)
    for degree in (1, 2):
        table, ode = kernel_table(name, sigmas, 0.0, degree), kernel_table("ode", sigmas, 0.0, degree)
        for mine, theirs in ((table.a, ode.a), (table.b, ode.b), (table.s, ode.s), (table.e, ode.e)):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


CONTRACT = (
    order_on_the_interior,
    order_of_the_extrapolated_form,
    error_falls_on_the_full_grid,
    table_is_sane_on_every_schedule,
    without_noise_it_is_the_ode,
)
