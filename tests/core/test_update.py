"""Replay is exact, accumulation changes nothing, masks mask, and bad numbers never step."""

import math

import pytest
import torch
from torch import nn

from gaussian_model import GaussianModel
from sage_grpo.core.checks import ReplayError, check_replay
from sage_grpo.core.collect import RewardFailure
from sage_grpo.core.reward import Reward
from sage_grpo.core.scores import Scores
from sage_grpo.core.update import trained_steps
from sage_grpo.math.gaussian import log_ratio
from sage_grpo.math.objectives.grpo import surrogate
from support import Recorder, make_config, make_loop, mean_brightness, perturbed, weights


class Attention(nn.Module):
    """A network with the operations of the real ones: convolution, attention, normalisation."""

    def __init__(self, width=32):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Conv3d(4, width, 1)
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.out = nn.Linear(width, 4)

    def forward(self, x, sigma):
        tokens = self.embed(x).flatten(2).transpose(1, 2) + sigma[:, None, None].to(x.dtype)
        mixed = tokens + self.attention(*[self.norm(tokens)] * 3, need_weights=False)[0]
        return self.out(mixed).transpose(1, 2).view_as(x)


class AttentionModel(GaussianModel):
    def __init__(self, dtype=torch.float32):
        super().__init__((4, 4, 8, 8), dtype=dtype)
        self.module = Attention().to(dtype)

    def velocity(self, x, sigma, condition):
        return self.module(x.to(self.dtype), sigma)

    def decode(self, x0):
        return super().decode(x0[:, :1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("make", [GaussianModel, AttentionModel])
def test_replay_is_exact_before_the_first_update(make, dtype):
    model = perturbed(make(dtype=dtype))
    loop, seen = make_loop(model=model)
    loop.iterate()
    first = seen.updates[0]
    assert first.per_step["log_ratio_sq"] == [0.0] * len(first.steps)
    assert first.per_step["ratio"] == [1.0] * len(first.steps)
    assert first.per_step["kl_old"] == [0.0] * len(first.steps)
    assert first.grad_norm > 0  # exact, and yet it learns


def test_replay_in_other_batch_shapes_deviates_by_rounding_only():
    """Matrix kernels may sum in another order for another batch size: measure it, and bound it."""
    model = perturbed(AttentionModel())
    loop, _ = make_loop(model=model)
    trajectory = loop.rollout().trajectories[0]
    worst = {}
    for size in (8, 4, 2, 1):
        for step, taken in trajectory.points.items():
            sigma = torch.full((size,), loop.table.sigma[step].item())
            with torch.no_grad():
                v = torch.cat([model.velocity(x, sigma[: len(x)], {}) for x in taken.x.split(size)])
            ratio = log_ratio(v, taken.velocity, taken.noise, loop.table.k[step].item()).abs().max().item()
            worst[size] = max(worst.get(size, 0.0), ratio)
    assert worst[8] == 0.0
    assert max(worst.values()) < 1e-7, worst  # a thousandth of the usual clip range of 1e-4


def plant_dropout(model):
    model.module.body[2].p = 0.5


def plant_other_dtype(model):
    inner = model.velocity
    model.velocity = lambda x, s, c: inner(x.bfloat16().float() if torch.is_grad_enabled() else x, s, c)


def plant_other_guidance(model):
    inner = model.velocity
    model.velocity = lambda x, s, c: inner(x, s, c) * (1.0 if torch.is_grad_enabled() else 6.0)


@pytest.mark.parametrize(
    ("plant", "message"),
    [
        (plant_dropout, "dropout"),
        (plant_other_dtype, "was not asked alike"),
        (plant_other_guidance, "was not asked alike"),
    ],
)
def test_the_gate_refuses_to_start(plant, message):
    model = perturbed(GaussianModel())
    plant(model)
    loop, seen = make_loop(model=model)
    before = weights(loop)
    with pytest.raises(ReplayError, match=message):
        loop.iterate()
    assert not seen.updates
    assert torch.equal(weights(loop), before)


def test_the_gate_looks_at_every_kind_of_step():
    """Changing one weight after the rollout is caught: the gate compares, it does not trust."""
    model = perturbed(GaussianModel())
    loop, _ = make_loop(model=model)
    trajectory = loop.rollout().trajectories[0]
    check_replay(model, trajectory)
    with torch.no_grad():
        next(model.module.parameters()).view(-1)[0] += 1e-3
    with pytest.raises(ReplayError):
        check_replay(model, trajectory)


def gradient_of_first_update(policy, reward=mean_brightness):
    """The gradient as the optimizer sees it (plain SGD with rate 1, no clipping)."""
    model = perturbed(GaussianModel())
    loop, seen = make_loop(make_config(policy={"max_grad_norm": 1e9, **policy}), model=model, reward=reward)
    loop.optimizer = torch.optim.SGD(model.module.parameters(), lr=1.0)
    before = weights(loop)
    loop.iterate()
    return before - weights(loop), seen


@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_accumulated_gradient_equals_the_whole_batch(batch_size):
    whole, _ = gradient_of_first_update({"batch_size": 8})
    parts, _ = gradient_of_first_update({"batch_size": batch_size})
    assert whole.norm() > 0
    assert (parts - whole).norm() < 1e-5 * whole.norm()


def test_gradient_equals_an_independent_implementation():
    """Autograd through torch.distributions, sample by sample, with the objective written out again."""
    model = perturbed(GaussianModel())
    config = make_config(policy={"max_grad_norm": 1e9}, kl={"anchor": "fixed", "high": 0.3, "old_weight": 0.5})
    loop, seen = make_loop(config, model=model)
    loop.optimizer = torch.optim.SGD(model.module.parameters(), lr=1.0)
    before = weights(loop)
    loop.bank.save("anchor")
    loop.updates = 1  # keep the anchor that was just saved
    perturbed(model, 0.01)
    start = weights(loop)
    loop.iterate()
    step_taken = start - weights(loop)

    rewards = seen.scores[0][:, 0].view(-1, 4)
    advantage = ((rewards - rewards.mean(1, True)) / (rewards.std(1, correction=0, keepdim=True) + 1e-4)).flatten()
    table, trajectory = loop.table, seen.rollouts[0].trajectories[0]
    on = table.stochastic
    n = (table.b.abs() / table.s)[on]
    parameters = list(model.module.parameters())

    def load(vector):
        nn.utils.vector_to_parameters(vector.float(), parameters)

    loss = 0.0
    load(before)
    anchor = {
        t: model.velocity(tr.x, tr.x.new_full((8,), table.sigma[t].item()), trajectory.condition).detach()
        for t, tr in trajectory.points.items()
    }
    load(start)
    for index, (t, tr) in enumerate(trajectory.points.items()):
        a, b, s = table.a[t], table.b[t], table.s[t]
        v = model.velocity(tr.x, tr.x.new_full((8,), table.sigma[t].item()), trajectory.condition)
        policy = torch.distributions.Normal((a * tr.x + b * v).double(), s)
        old = torch.distributions.Normal((a * tr.x + b * tr.velocity).double(), s)
        reference = torch.distributions.Normal((a * tr.x + b * anchor[t]).double(), s)
        action = old.mean + s * tr.noise
        ratio = (policy.log_prob(action) - old.log_prob(action)).flatten(1).mean(1).exp()
        equal = n.quantile(0.5) / n[index]
        kl_anchor = torch.distributions.kl_divergence(policy, reference).flatten(1).mean(1)
        kl_old = torch.distributions.kl_divergence(policy, old).flatten(1).mean(1)
        clipped = ratio.clamp(0.9, 1.1)
        surrogate = -torch.minimum(ratio * advantage, clipped * advantage)
        loss = loss + (equal * surrogate + 0.3 * (kl_anchor + 0.5 * kl_old)).mean() / len(trajectory.points)
    gradient = torch.cat([g.double().flatten() for g in torch.autograd.grad(loss, parameters)])
    assert (step_taken - gradient).norm() < 1e-4 * gradient.norm()


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -1e30])
def test_a_failed_reward_leaves_no_trace(garbage):
    """Whatever number stands in a failed score, the update is the same to the bit."""

    class Failing(Reward):
        names = ("score",)

        def __init__(self, value):
            self.value = value

        def score(self, videos, prompts):
            values = mean_brightness(videos)[:, None]
            valid = torch.ones_like(values, dtype=torch.bool)
            values[2], valid[2] = self.value, False
            return Scores(values, valid)

    gradient, seen = gradient_of_first_update({}, Failing(garbage))
    reference, _ = gradient_of_first_update({}, Failing(0.0))
    assert torch.equal(gradient, reference)
    assert seen.metrics[0]["reward/failed"] == 1 / 8
    assert math.isfinite(seen.metrics[0]["reward/mean"])


def test_a_group_with_one_valid_sample_contributes_nothing():
    """The update equals that of a run whose optimizer never saw the group's samples."""

    def fail(*indices):
        def score(videos):
            values = mean_brightness(videos)
            values[list(indices)] = float("nan")
            return values

        return score

    one_left, _ = gradient_of_first_update({}, fail(0, 1, 2))
    none_left, _ = gradient_of_first_update({}, fail(0, 1, 2, 3))
    assert one_left.norm() > 0
    assert torch.equal(one_left, none_left)


def test_too_many_failures_stop_the_run():
    loop, _ = make_loop(reward=lambda videos: [float("nan")] * 5 + [1.0] * 3)
    with pytest.raises(RewardFailure, match="5 of 8 rewards failed in iteration 0; at most 50%"):
        loop.iterate()


def test_as_many_failures_as_the_limit_says_are_allowed():
    """`max_failed_rewards` is the largest share that may fail: exactly that much goes on, one more does not."""
    loop, seen = make_loop(
        make_config(policy={"max_failed_rewards": 0.5}), reward=lambda videos: [float("nan")] * 4 + [0.0, 1.0, 2.0, 3.0]
    )
    loop.iterate()
    assert seen.metrics[0]["reward/failed"] == 0.5
    assert seen.metrics[0]["skipped_iterations"] == 0


def test_all_failures_allowed_means_no_update():
    loop, seen = make_loop(
        make_config(policy={"max_failed_rewards": 1.0}), reward=lambda videos: [float("nan")] * len(videos)
    )
    before = weights(loop)
    loop.iterate()
    assert not seen.updates
    assert seen.metrics[0]["skipped_iterations"] == 1
    assert torch.equal(weights(loop), before)


def test_a_reward_of_the_wrong_shape_is_an_error():
    loop, _ = make_loop(reward=lambda videos: [1.0] * 3)
    with pytest.raises(ValueError, match="returned \\(3, 1\\) values for 8 videos"):
        loop.iterate()


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_non_finite_never_steps(where):
    """NaN in the forward pass, or only in the backward pass: weights, optimizer and counters stay put."""
    model = perturbed(GaussianModel())
    loop, seen = make_loop(make_config(policy={"num_iterations": 2}), model=model)
    loop.iterate()
    before, state, updates = weights(loop), loop.optimizer.state_dict(), loop.updates
    moments = [v["exp_avg"].clone() for v in state["state"].values()]
    inner = model.velocity

    def poisoned(x, sigma, condition):
        v = inner(x, sigma, condition)
        if not torch.is_grad_enabled():
            return v
        if where == "loss":
            return v * float("nan")
        v.register_hook(lambda gradient: gradient * float("inf"))
        return v

    model.velocity = poisoned
    loop.iterate()
    assert [r.stepped for r in seen.updates] == [True, True, False, False]
    assert torch.equal(weights(loop), before)
    after = [v["exp_avg"] for v in loop.optimizer.state_dict()["state"].values()]
    assert all(torch.equal(a, b) for a, b in zip(moments, after, strict=True))
    assert loop.updates == updates
    assert seen.metrics[-1]["skipped_updates"] == 2
    model.velocity = inner
    loop.iterate()  # and the run goes on
    assert loop.updates == updates + 2


def test_several_updates_per_rollout_move_the_ratio():
    loop, seen = make_loop(make_config(policy={"num_iterations": 3, "num_minibatches": 2}))
    loop.iterate()
    assert len(seen.updates) == 6
    assert seen.updates[0].mean("log_ratio_sq") == 0
    assert all(r.mean("log_ratio_sq") > 0 for r in seen.updates[2:])
    for epoch in range(3):
        trained = seen.updates[2 * epoch].steps + seen.updates[2 * epoch + 1].steps
        assert sorted(trained) == [0, 1, 2, 3, 4]


def test_trained_fraction_and_order():
    steps = list(range(3, 13))
    config = make_config(sampling={"steps": 11}, policy={"timestep_fraction": 0.6})
    drawn = [trained_steps(steps, config, i, 0)[0] for i in range(50)]
    assert all(len(d) == len(set(d)) == 6 and set(d) <= set(steps) for d in drawn)
    assert {s for d in drawn for s in d} == set(steps)
    assert any(d != sorted(d) for d in drawn)
    assert drawn[0] == trained_steps(steps, config, 0, 0)[0]
    ordered = make_config(sampling={"steps": 11}, policy={"timestep_fraction": 0.6, "permute_timesteps": False})
    assert all(d == sorted(d) for d in (trained_steps(steps, ordered, i, 0)[0] for i in range(10)))


@pytest.mark.slow
def test_equalizer_balances_measured_gradients():
    """Per-timestep gradient norms of a small network: far apart without, close together with it."""

    def norms(equalizer):
        model = perturbed(AttentionModel())
        config = make_config(
            sampling={"steps": 20, "shift": 5.0},
            policy={"equalizer": equalizer, "num_minibatches": 19, "max_grad_norm": 1e9, "prompts_per_iteration": 4},
        )
        config = config.model_copy(update={"policy": config.policy.model_copy(update={"batch_size": 16})})
        loop, seen = make_loop(config, model=model)
        loop.optimizer = torch.optim.SGD(model.module.parameters(), lr=0.0)
        loop.run(4)
        by_step = {}
        for result in seen.updates:
            by_step.setdefault(result.steps[0], []).append(result.grad_norm)
        return torch.tensor([sum(v) / len(v) for _, v in sorted(by_step.items())])

    raw, balanced = norms(False), norms(True)
    spread = [(n.max() / n.min()).item() for n in (raw, balanced)]
    print(f"max/min gradient norm over timesteps: {spread[0]:.1f} without, {spread[1]:.2f} with the equalizer")
    assert spread[0] > 10
    assert spread[1] < 3


def test_reported_gradient_is_the_one_autograd_finds():
    """The per-timestep series is a closed form; autograd on the surrogate gives the same norms."""
    model = perturbed(GaussianModel())
    loop, seen = make_loop(make_config(policy={"num_iterations": 2}), model=model)
    loop.iterate()
    rewards = seen.scores[0][:, 0].view(-1, 4)
    advantage = ((rewards - rewards.mean(1, True)) / (rewards.std(1, correction=0, keepdim=True) + 1e-4)).flatten()
    first, trajectory = seen.updates[0], seen.rollouts[0].trajectories[0]
    for step, reported in zip(first.steps, first.per_step["gradient"], strict=True):
        taken = trajectory.points[step]
        v = taken.velocity.clone().requires_grad_()  # at the first update the policy is the rollout's
        loss = surrogate(log_ratio(v, taken.velocity, taken.noise, loop.table.k[step].item()), advantage, 0.1)
        (gradient,) = torch.autograd.grad(loss.sum(), v)
        assert gradient.flatten(1).norm(dim=1).mean().item() == pytest.approx(reported, rel=1e-4)


def test_events_arrive_in_order():
    order = []

    class Order(Recorder):
        def __getattribute__(self, name):
            if name.startswith("on_"):
                order.append(name)
            return super().__getattribute__(name)

    loop, _ = make_loop(callbacks=[Order()])
    loop.run(1)
    assert order == ["on_start", "on_scores", "on_rollout", "on_update", "on_iteration", "on_end"]


def test_a_callback_can_stop_the_run():
    class Stop(Recorder):
        def on_iteration(self, loop, metrics):
            if loop.iteration == 2:
                loop.stop("enough")

    loop, seen = make_loop(callbacks=[Stop()])
    loop.run(10)
    assert len(seen.metrics) == 2
    assert loop.stop_reason == "enough"
