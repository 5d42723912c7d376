"""Eq. 15 as printed: value and gradient of the sampled velocity term, against Gaussian log densities in float64."""

import pytest
import torch
from torch.distributions import Normal

from gaussian_model import GaussianModel
from sage_grpo.config import ConfigError
from sage_grpo.core.objectives import chosen_objective
from sage_grpo.core.rollout import Point, Trajectory, sample, velocity_at
from sage_grpo.core.selection import TrainBatch
from sage_grpo.core.update import loss_inputs, trust_region
from sage_grpo.math.kernels import KERNELS, kernel_table
from sage_grpo.math.objectives import OBJECTIVES
from sage_grpo.math.schedule import sigma_schedule
from support import make_config, make_loop, numbered_prompts, objective_config, perturbed, weights

STOCHASTIC = [name for name in KERNELS if name != "ode"]
VELOCITY_ONLY = {"anchor": "none", "old_weight": 0.3, "high": 0.1}


def log_density(table, step, x, v, following):
    """Of the step to `following`, summed over a latent: (B,), by torch.distributions in float64."""
    mean = table.a[step] * x.double() + table.b[step] * v.double()
    return Normal(mean, table.s[step]).log_prob(following).flatten(1)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("kernel", STOCHASTIC)
def test_value_and_gradient_equal_gaussian_log_densities(kernel, reduction):
    """Two networks apart, at every stochastic step: through the same function that an update calls."""
    config = make_config(policy={"reduction": reduction}, kl=VELOCITY_ONLY | {"estimator": "sampled"})
    table = kernel_table(kernel, sigma_schedule(20, 5.0), 0.7)
    x, v_old, noise, change = torch.randn(4, 3, 5, 7, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for step in table.stochastic.nonzero().flatten().tolist():
        v = (v_old + 0.1 * change).requires_grad_()
        following = table.a[step] * x + table.b[step] * v_old + table.s[step] * noise
        old, new = (log_density(table, step, x, of, following) for of in (v_old, v))
        truth = getattr(old - new, reduction)(1)
        (slope,) = torch.autograd.grad(truth.sum(), v)

        point = Point(x, table.sigma[step].item(), v_old, noise, table.b[step].item(), table.k[step].item())
        path = Trajectory(table, {}, {step: point}, x, {})
        batch = TrainBatch(path, torch.ones(3), torch.ones(3))
        t = trust_region(loss_inputs(batch, step, v), config)
        (ours,) = torch.autograd.grad(t.old.sum(), v)
        torch.testing.assert_close(t.old, truth, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(ours, slope, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(t.penalty, 0.3 * truth, rtol=1e-10, atol=1e-10)


def first_gradient(estimator):
    """Of all weights at the first update, where rewards are alike: the velocity term alone pulls."""
    config = make_config(kl=VELOCITY_ONLY | {"estimator": estimator}, policy={"max_grad_norm": 1e9})
    model = perturbed(GaussianModel(dtype=torch.float64))
    loop, seen = make_loop(config, model=model, reward=lambda videos: torch.zeros(len(videos)))
    loop.optimizer = torch.optim.SGD(model.module.parameters(), lr=1.0)
    before = weights(loop)
    loop.iterate()
    return before - weights(loop), seen.rollouts[0].trajectories, loop.table, seen.updates[0]


def test_the_first_update_has_a_gradient_where_the_closed_form_has_none():
    """With one update per rollout the closed form does nothing; the estimate's gradient is that of the densities."""
    silent, *_ = first_gradient("exact")
    assert not silent.any()

    found, paths, table, update = first_gradient("sampled")
    assert update.per_step["kl_old"] == [0.0] * len(update.steps)  # and yet:
    assert found.any()
    model = perturbed(GaussianModel(dtype=torch.float64))
    loss = torch.zeros((), dtype=torch.float64)
    for path in paths:
        for step, point in path.points.items():
            v = velocity_at(model, point.x, point.sigma, path.condition)
            x, noise = point.x.double(), point.noise.double()
            following = table.a[step] * x + table.b[step] * v.detach() + table.s[step] * noise
            old, new = (log_density(table, step, point.x, of, following) for of in (v.detach(), v))
            loss = loss + (old - new).mean(1).sum() / (8 * len(path.points))
    gradient = torch.autograd.grad(0.1 * 0.3 * loss, list(model.module.parameters()))
    truth = torch.cat([g.flatten() for g in gradient])
    assert (found - truth).norm() <= 1e-10 * truth.norm()


def test_it_is_unbiased_on_the_gaussian_model():
    """Over the noise of 4,000 rollouts its mean is the KL in closed form, within three standard errors."""
    config = {of: make_config(policy={"reduction": "sum"}, kl={"estimator": of}) for of in ("exact", "sampled")}
    table = kernel_table("sage", sigma_schedule(6, 3.0), 0.7)
    keys = [("drawn", i) for i in range(4000)]
    old, new = GaussianModel(), perturbed(GaussianModel(), 0.1)
    path = sample(old, numbered_prompts(0, 1) * len(keys), table, keys, keys)
    off = torch.zeros(len(keys), dtype=torch.float64)
    total = torch.zeros_like(off)
    for step, point in path.points.items():
        with torch.no_grad():
            v = velocity_at(new, point.x, point.sigma, path.condition)
            inputs = loss_inputs(TrainBatch(path, torch.ones(len(keys)), torch.ones(len(keys))), step, v)
            sampled, exact = (trust_region(inputs, config[of]).old.double() for of in ("sampled", "exact"))
        error = (sampled - exact).std() / len(keys) ** 0.5
        assert (sampled - exact).mean().abs() < 3 * error, step
        off, total = off + sampled - exact, total + exact
    error = off.std() / len(keys) ** 0.5
    assert off.mean().abs() < 3 * error
    assert total.mean() > 20 * error  # a bias would be seen: what is measured is far above the noise


@pytest.mark.parametrize("name", [name for name, objective in OBJECTIVES.items() if objective.renoised])
def test_objectives_without_steps_refuse_it(name):
    config = objective_config(name, kl={"estimator": "sampled"})
    with pytest.raises(ConfigError, match=r"kl\.estimator=sampled: the objective .* use kl\.estimator=exact"):
        chosen_objective(config)
