"""CPS as the released code and its paper have it: the log-likelihood is −‖x' − mean‖², without 1/(2s²)."""

import math

import pytest
import torch

from gaussian_model import GaussianModel
from sage_grpo.core.objectives import chosen_objective
from sage_grpo.core.rollout import sample, velocity_at
from sage_grpo.core.selection import TrainBatch
from sage_grpo.core.update import loss_inputs, trust_region
from sage_grpo.math.equalizer import equalizer
from sage_grpo.math.kernels import kernel_table
from sage_grpo.math.schedule import sigma_schedule
from support import make_config, numbered_prompts, perturbed

ETA, STEPS, SHIFT = 0.5, 20, 5.0


def released_step(x, v, sigma, sigma_next):
    """Mean and spread of a step, in the released code's own words."""
    std = sigma_next * math.sin(ETA * math.pi / 2)
    noise_estimate, clean = x + v * (1 - sigma), x - sigma * v
    return clean * (1 - sigma_next) + noise_estimate * math.sqrt(sigma_next**2 - std**2), std


def each_step(kernel, objective_name="grpo"):
    """Of a rollout of one policy, seen by another: what the project says, and what the released formulas give."""
    config = make_config(
        policy={"clip": None, "objective": objective_name}, kl={"estimator": "sampled"}, sampling={"kernel": kernel}
    )
    objective, table = chosen_objective(config), kernel_table(kernel, sigma_schedule(STEPS, SHIFT), ETA)
    keys = [("drawn", i) for i in range(8)]
    old, new = perturbed(GaussianModel(dtype=torch.float64)), perturbed(GaussianModel(dtype=torch.float64), 0.2)
    path = sample(old, numbered_prompts(0, 8), table, keys, keys)
    for step, point in path.points.items():
        v = velocity_at(new, point.x, point.sigma, path.condition).detach().requires_grad_()
        inputs = loss_inputs(TrainBatch(path, torch.ones(8), torch.ones(8)), step, v, point.stored)
        policy, trust = objective.loss(inputs), trust_region(inputs, config)
        x, sigma, sigma_next = point.x.double(), point.sigma, table.sigma_next[step].item()
        old_mean, std = released_step(x, point.stored, sigma, sigma_next)
        mean, _ = released_step(x, v, sigma, sigma_next)
        following = old_mean + std * point.noise.double()
        old_log, log = (-((following - m) ** 2).flatten(1).mean(1) for m in (old_mean, mean))
        yield policy, trust, v, log - old_log, (mean - old_mean).square().flatten(1).mean(1) / (2 * std**2)


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("name", ["grpo", "dppo"])
def test_log_ratio_is_the_released_one(name):
    """At every step, with its gradient; the KL keeps 1/(2s²), as in the released code."""
    steps = list(each_step("cps_unscaled", name))
    assert len(steps) == STEPS - 1  # the last one has no noise
    for policy, trust, v, log_ratio, kl in steps:
        close(policy.log_ratio, log_ratio)
        close(trust.old, -log_ratio)
        close(trust.anchor, kl)
        ours, truth = (torch.autograd.grad(of.sum(), v, retain_graph=True)[0] for of in (policy.log_ratio, log_ratio))
        close(ours, truth)


def test_how_much_less_late_steps_weigh():
    """The weight of a step relative to a Gaussian's, 2s², falls 23-fold over the steps."""
    table = kernel_table("cps_unscaled", sigma_schedule(STEPS, SHIFT), ETA)
    weights = table.scale[table.stochastic]
    assert weights[0].item() == pytest.approx(0.98, abs=0.005)
    assert weights[-1].item() == pytest.approx(0.043, abs=0.001)
    plain = kernel_table("cps", sigma_schedule(STEPS, SHIFT), ETA)
    assert plain.scale.tolist() == [1.0] * STEPS
    for column in ("a", "b", "s", "k"):
        assert torch.equal(getattr(table, column), getattr(plain, column))
    assert torch.equal(equalizer(table), equalizer(plain))


def test_the_gaussian_form_is_another():
    """What the test above compares with tells the two forms apart."""
    for policy, _, _, log_ratio, _ in each_step("cps"):
        assert not torch.allclose(policy.log_ratio, log_ratio, rtol=1e-3, atol=0)
