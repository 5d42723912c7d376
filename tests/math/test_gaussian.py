"""Log-ratio and KL against torch.distributions, and what low precision does to the usual way."""

import pytest

pytest.importorskip("hypothesis")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from precision import drift_at_large_size
from sage_grpo.math.gaussian import kl, log_ratio
from sage_grpo.math.kernels import KERNELS, kernel_table
from sage_grpo.math.schedule import sigma_schedule

STOCHASTIC = [name for name in KERNELS if name != "ode"]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", STOCHASTIC)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), size=st.floats(1e-6, 1.0))
def test_equals_torch_distributions(name, reduction, seed, size):
    table = kernel_table(name, sigma_schedule(20, 5.0), 0.7)
    generator = torch.Generator().manual_seed(seed)
    x, v_old, noise, change = torch.randn(4, 3, 5, 7, generator=generator, dtype=torch.float64)
    v = v_old + size * change
    for i in table.stochastic.nonzero().flatten().tolist():
        a, b, s = table.a[i], table.b[i], table.s[i]
        old = torch.distributions.Normal(a * x + b * v_old, s)
        new = torch.distributions.Normal(a * x + b * v, s)
        following = old.mean + s * noise
        truth_ratio = new.log_prob(following) - old.log_prob(following)
        truth_kl = torch.distributions.kl_divergence(new, old)
        reduced = [getattr(t.flatten(1), reduction)(1) for t in (truth_ratio, truth_kl)]
        k = table.k[i].item()
        ours = log_ratio(v, v_old, noise, k, reduction), kl(v, v_old, k, reduction)
        torch.testing.assert_close(list(ours), reduced, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_change_is_exactly_zero(dtype):
    v, noise = torch.randn(2, 4, 1000).to(dtype)
    assert (log_ratio(v, v.clone(), noise.float(), -37.0) == 0).all()
    assert (kl(v, v.clone(), -37.0) == 0).all()


@pytest.mark.slow
def test_the_usual_difference_of_log_probs_drifts_in_bf16():
    """At a million elements and with nothing changed the usual ratio is not 1; ours is, to the bit."""
    result = drift_at_large_size(elements=1_000_000)
    assert result.ours_unchanged == [0.0] * len(result.ours_unchanged)
    assert max(result.usual_unchanged) > 1e-4  # the whole clip range, before any update
    # and once the policy does change, ours is the closer one to float64 truth at every step
    assert all(ours < usual for ours, usual in zip(result.ours_error, result.usual_error, strict=True))
    assert max(result.ours_error) < 1e-2 * max(result.usual_error)
