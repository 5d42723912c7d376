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


def table_is_sane_on_every_schedule(name: str) -> None:
    """Finite everywhere; noise wherever the kernel is stochastic; the velocity always points to the data."""

    @settings(max_examples=60, deadline=None)
    @given(steps=st.integers(2, 1000), shift=st.floats(0.5, 17), eta=st.floats(0.05, 1.0))
    def check(steps: int, shift: float, eta: float) -> None:
        table = kernel_table(name, sigma_schedule(steps, shift), eta)
        for column in (table.a, table.b, table.s, table.k, equalizer(table)):
            assert column.dtype == torch.float64
            assert column.isfinite().all()
        assert (table.b < 0).all()
        inner = table.sigma_next > 0  # only the very last step may be free of noise
        assert (table.s[inner] > 0).all() or (table.s == 0).all()

    check()


def without_noise_it_is_the_ode(name: str) -> None:
    sigmas = sigma_schedule(12, 5.0)
    table, ode = kernel_table(name, sigmas, 0.0), kernel_table("ode", sigmas, 0.0)
    for mine, theirs in ((table.a, ode.a), (table.b, ode.b), (table.s, ode.s)):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


CONTRACT = (
    order_on_the_interior,
    error_falls_on_the_full_grid,
    table_is_sane_on_every_schedule,
    without_noise_it_is_the_ode,
)
