"""The clipped surrogate, the equalizer's table and the weight of the KL."""

import itertools
import math
import random
import statistics

import pytest

pytest.importorskip("hypothesis")

import torch
from hypothesis import given
from hypothesis import strategies as st

from sage_grpo.math.controller import KLRule, initial_weight, next_weight
from sage_grpo.math.equalizer import equalizer, gradient_scale
from sage_grpo.math.kernels import kernel_table
from sage_grpo.math.loss import dual_kl
from sage_grpo.math.objectives.grpo import clip_mask, surrogate
from sage_grpo.math.schedule import sigma_schedule, stochastic_window


@given(st.floats(-1e-3, 1e-3), st.floats(-5, 5), st.sampled_from([1e-5, 1e-4, 0.2]))
def test_surrogate_is_the_ppo_clip(value, advantage, clip):
    log_ratio = torch.tensor([value], dtype=torch.float64, requires_grad=True)
    loss = surrogate(log_ratio, torch.tensor([advantage], dtype=torch.float64), clip)
    (gradient,) = torch.autograd.grad(loss.sum(), log_ratio)
    held = clip_mask(log_ratio, torch.tensor([advantage]), clip).item()
    ratio = log_ratio.detach().exp().item()
    if held:
        assert gradient.item() == 0
        assert loss.item() == pytest.approx(-advantage * (1 + clip if advantage > 0 else 1 - clip))
    else:
        assert loss.item() == pytest.approx(-ratio * advantage)
        assert gradient.item() == pytest.approx(-ratio * advantage)


def test_clip_of_1e_5_sees_ratios_that_float32_cannot():
    """1 + 1e-5 ± 1e-8 is the same float32; the clip must still tell them apart."""
    log_ratio = torch.log1p(torch.tensor([0.999e-5, 1.001e-5], dtype=torch.float64)).float()
    assert clip_mask(log_ratio, torch.ones(2), 1e-5).tolist() == [False, True]


def test_dual_kl_weights_both_terms():
    assert dual_kl(torch.tensor(2.0), torch.tensor(3.0), 1.0, 0.1).item() == pytest.approx(2.3)


@pytest.mark.parametrize("steps", [9, 10])
def test_equalizer_makes_every_step_weigh_the_median(steps):
    table = kernel_table("sage", sigma_schedule(steps, 5.0), 0.7)
    scale, weight = gradient_scale(table), equalizer(table)
    expected = statistics.median((table.b.abs() / table.s).tolist())
    torch.testing.assert_close(scale * weight, torch.full_like(scale, expected), rtol=1e-12, atol=0)


def test_equalizer_leaves_deterministic_steps_out():
    table = kernel_table("sage", sigma_schedule(10, 5.0), 0.7).ode_outside(stochastic_window(10, 4, 2))
    assert (equalizer(table) > 0).tolist() == [2 <= i < 6 for i in range(10)]
    assert (equalizer(kernel_table("ode", sigma_schedule(10), 0.0)) == 0).all()


def run(rule, kls):
    weight = initial_weight(rule)
    values = [weight.value]
    for observed in kls:
        weight = next_weight(weight, observed, rule)
        values.append(weight.value)
    return values, weight


def test_constant_and_two_stage_schedules():
    constant, _ = run(KLRule(warmup=0), [1.0] * 5)
    assert constant == [1e-5] * 6
    two_stage, _ = run(KLRule(warmup=100), [1.0] * 150)
    assert two_stage[0] == 1e-7
    assert two_stage[50] == pytest.approx((1e-7 + 1e-5) / 2)
    assert two_stage[100:] == [1e-5] * 51


def test_feedback_starts_after_warmup_uses_ten_kls_and_a_dead_band():
    rule = KLRule(low=1e-3, high=1.0, warmup=2, feedback="lagrangian", target=1.0)
    values, weight = run(rule, [100.0, 100.0, *[0.1] * 10])
    assert values[:3] == [1e-3, pytest.approx(0.5005), 1.0]
    assert len(weight.recent) == 10
    # the two early hundreds keep the mean above the target until they leave the window of ten
    assert values[3:11] == [1.0] * 8
    assert values[-1] == pytest.approx(0.9)
    inside, _ = run(KLRule(low=1e-3, high=1.0, warmup=0, feedback="lagrangian", target=1.0), [1.49, 0.51] * 10)
    assert set(inside) == {1.0}


def test_feedback_stays_inside_its_bounds():
    rule = KLRule(low=0.5, high=1.0, warmup=0, feedback="lagrangian", target=1.0)
    assert min(run(rule, [0.0] * 50)[0]) == 0.5
    assert max(run(rule, [99.0] * 50)[0]) == 1.0


def test_the_warm_up_ends_at_start_and_high_stays_the_bound():
    rule = KLRule(low=1e-3, high=10.0, start=1.0, warmup=2, feedback="lagrangian", target=1.0, history=1)
    values, _ = run(rule, [5.0, 5.0, *[5.0] * 40])
    assert values[:4] == [1e-3, pytest.approx(0.5005), 1.0, pytest.approx(1.1)]
    assert values[-1] == 10.0


def test_proportional_feedback_corrects_the_start_in_one_step_and_then_moves_by_the_error():
    rule = KLRule(low=1e-3, high=1e3, start=1.0, warmup=0, feedback="proportional", target=1.0, history=4)
    first = [1e9] * 4  # not looked at
    values, _ = run(rule, [*first, *[4.0] * 8])
    assert values[:8] == [1.0] * 8  # until there is a mean
    assert values[8:] == [pytest.approx(4 * math.sqrt(2) ** n) for n in (1, 2, 3, 4, 5)]  # then × 4 in four updates
    faster, _ = run(KLRule(**vars(rule) | {"gain": 2.0}), [*first, *[4.0] * 8])
    assert faster[-1] / faster[8] == pytest.approx((values[-1] / values[8]) ** 2)
    far, _ = run(rule, [*first, *[1e9] * 4])
    assert far[-1] == pytest.approx(10 ** (1 + 1 / 4))  # one wild update does not throw λ away
    assert run(rule, [*first, *[0.0] * 4])[0][-1] == pytest.approx(10 ** -(1 + 1 / 4))


def test_proportional_feedback_does_not_look_at_kls_of_the_warmup():
    rule = KLRule(low=1e-3, high=1e3, start=1.0, warmup=6, feedback="proportional", target=1.0, history=2)
    values, _ = run(rule, [1e-9] * 8 + [1.0] * 4)
    assert values[6:] == [1.0] * 7


def test_damping_answers_the_change_of_the_kl():
    rule = KLRule(1e-3, 100.0, 1.0, 0, "proportional", target=1.0, history=1, damping=2.0)
    assert run(rule, [9.0, 0.5, 1.0])[0][-1] == pytest.approx(0.125 * 4.0)  # on target, and doubled: hold it back
    assert run(rule, [9.0, 2.0, 1.0])[0][-1] == pytest.approx(8.0 * 0.25)
    assert run(KLRule(**vars(rule) | {"damping": 0.0}), [9.0, 0.5, 1.0])[0][-1] == pytest.approx(0.5)


@pytest.mark.parametrize(("feedback", "settles"), [("proportional", True), ("paper", False)])
def test_proportional_feedback_holds_a_kl_that_swings_and_hardly_answers(feedback, settles):
    """The plant of the laboratory: 0 after each renewal of the anchor, noisy, and only weakly dependent on λ."""

    def late_mean(start, power, seed):
        noise, rule = random.Random(seed), KLRule(1e-4, 1e4, start, 0, feedback, target=1.0, history=20)
        weight, seen = initial_weight(rule), []
        for update in range(400):
            swing = 2 * (update % 10) / 9 * noise.lognormvariate(-0.02, 0.2)
            seen.append(2 * swing * weight.value**-power)  # twice the target at λ = 1
            weight = next_weight(weight, seen[-1], rule)
        means = [sum(seen[n : n + 20]) / 20 for n in range(200, 380)]
        return all(0.5 <= mean <= 1.5 for mean in means)

    cases = itertools.product((0.1, 10.0), (0.25, 0.5, 1.0), range(3))
    wanted = [late_mean(start * 2 ** (1 / power), power, seed) for start, power, seed in cases]
    assert all(wanted) if settles else not all(wanted)
