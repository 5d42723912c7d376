"""Every objective against an implementation of its own: numpy, float64, gradients written out by hand."""

import re
from typing import NamedTuple

import numpy as np
import pytest
import torch

from sage_grpo.config import AlgorithmConfig
from sage_grpo.core.objectives import chosen_objective
from sage_grpo.math.equalizer import equalizer
from sage_grpo.math.kernels import kernel_table
from sage_grpo.math.objectives import OBJECTIVES, LossInputs
from sage_grpo.math.schedule import sigma_schedule

VIDEOS, SHAPE = 12, (3, 4, 5)
SIZE = 60


class Drawn(NamedTuple):
    v: np.ndarray
    old: np.ndarray
    anchor: np.ndarray
    sigma: float
    noise: np.ndarray
    clean: np.ndarray
    advantage: np.ndarray
    b: float
    k: float

    @property
    def target(self):
        return self.noise - self.clean


def drawn(seed, spread, scale=1.0):
    rng = np.random.default_rng(seed)
    old, noise, clean, *apart = rng.standard_normal((5, VIDEOS, SIZE))
    v, anchor = old + spread * apart[0], old + spread * apart[1]
    return Drawn(v, old, anchor, 0.7, noise, clean, scale * rng.standard_normal(VIDEOS), -0.13, -0.9)


def inputs_of(d):
    rows = {name: torch.from_numpy(x).reshape(VIDEOS, *SHAPE) for name, x in d._asdict().items() if np.ndim(x) == 2}
    v = rows.pop("v").requires_grad_(True)
    return LossInputs(velocity=v, **rows, sigma=d.sigma, advantage=torch.from_numpy(d.advantage), b=d.b, k=d.k)


def objective(name, **settings):
    """As a recipe would have it, with what the others need."""
    policy, sampling = {"objective": name, **settings}, {}
    if OBJECTIVES[name].renoised:
        policy |= {"points": 4}
        sampling = {"eta": 0, "shared_initial_noise": False}
    if OBJECTIVES[name].paired:
        policy |= {"select": 1}
    return chosen_objective(AlgorithmConfig(policy=policy, sampling=sampling))


def exact_ratio(d):
    delta = d.v - d.old
    slope = (d.k * d.noise - d.k**2 * delta) / SIZE
    return np.exp(d.k * (d.noise * delta).mean(1) - d.k**2 * (delta**2).mean(1) / 2), slope


def clip_by_hand(ratio, slope, advantage, clip):
    bounded = np.clip(ratio, 1 - clip, 1 + clip)
    value = -np.minimum(ratio * advantage, bounded * advantage)
    free = ratio * advantage <= bounded * advantage
    return value, -(free * ratio * advantage)[:, None] * slope


def grpo(d, clip=1e-4):
    return clip_by_hand(*exact_ratio(d), d.advantage, clip)


def guard(d, clip=2e-6):
    return clip_by_hand(np.exp(d.b * (d.noise * (d.v - d.old)).mean(1)), d.b * d.noise / SIZE, d.advantage, clip)


def dppo(d, divergence=1e-5):
    ratio, slope = exact_ratio(d)
    spent = d.k**2 * ((d.v - d.old) ** 2).mean(1) / 2 >= divergence
    free = ~(spent & ((ratio - 1) * d.advantage > 0))
    return -(free * ratio * d.advantage), -(free * ratio * d.advantage)[:, None] * slope


def error(d, v):
    """And its gradient by v."""
    return ((v - d.target) ** 2).mean(1), 2 * (v - d.target) / SIZE


def rwr(d):
    value, slope = error(d, d.v)
    return d.advantage * value, d.advantage[:, None] * slope


def awm(d, clip=1.0, power=0.25, tiny=1e-10):
    (new, slope), (old, _) = error(d, d.v), error(d, d.old)
    weigh = lambda x: d.sigma / power * ((x + tiny) ** power - tiny**power)  # noqa: E731
    steep = -d.sigma * (new + tiny) ** (power - 1)
    return clip_by_hand(np.exp(weigh(old) - weigh(new)), steep[:, None] * slope, d.advantage, clip)


def nft(d, beta=1.0, limit=5.0):
    x = (1 - d.sigma) * d.clean + d.sigma * d.noise
    share = d.advantage / (2 * limit) + 0.5
    value, slope = np.zeros(VIDEOS), np.zeros((VIDEOS, SIZE))
    mixtures = {1: beta * d.v + (1 - beta) * d.old, -1: (1 + beta) * d.old - beta * d.v}
    for side, mixed in mixtures.items():
        off = x - d.sigma * mixed - d.clean
        weight = np.maximum(np.abs(off).mean(1), 1e-5)
        part = limit / beta * (share if side == 1 else 1 - share) / weight
        value += part * (off**2).mean(1)
        slope -= side * beta * d.sigma * 2 * part[:, None] * off / SIZE
    return value, slope


def dpo(d, beta=2000.0):
    (new, slope), (ref, _) = error(d, d.v), error(d, d.anchor)
    value, down = np.zeros(VIDEOS), np.zeros((VIDEOS, SIZE))
    for i in range(0, VIDEOS, 2):
        won, lost = (i, i + 1) if d.advantage[i] > d.advantage[i + 1] else (i + 1, i)
        margin = -beta / 2 * ((new[won] - ref[won]) - (new[lost] - ref[lost]))
        value[i : i + 2] = np.logaddexp(0, -margin)
        pull = 2 * beta / 2 / (1 + np.exp(margin))  # both of them carry the loss of the pair
        down[won], down[lost] = pull * slope[won], -pull * slope[lost]
    return value, down


BY_HAND = {"grpo": grpo, "guard": guard, "dppo": dppo, "nft": nft, "awm": awm, "rwr": rwr, "dpo": dpo}
ON_STEPS, NOISED = ("grpo", "guard", "dppo"), ("nft", "awm", "rwr", "dpo")
SPREADS = (0.0, 1e-6, 1e-3, 0.3)


def test_every_objective_has_one():
    assert set(BY_HAND) == set(OBJECTIVES) == {*ON_STEPS, *NOISED}
    assert {name for name, cls in OBJECTIVES.items() if cls.renoised} == set(NOISED)


def value_and_gradient(name, d, **settings):
    inputs = inputs_of(d)
    loss = objective(name, **settings).loss(inputs)
    (gradient,) = torch.autograd.grad(loss.value.sum(), inputs.velocity)
    return loss, gradient.reshape(VIDEOS, SIZE).numpy()


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("name", BY_HAND)
def test_value_and_gradient(name, spread):
    d = drawn(3, spread)
    loss, gradient = value_and_gradient(name, d)
    value, slope = BY_HAND[name](d)
    assert loss.value.dtype == torch.float64
    assert loss.value.detach().numpy() == pytest.approx(value, rel=1e-10, abs=1e-12)
    assert gradient == pytest.approx(slope, rel=1e-10, abs=1e-14)
    sizes = np.linalg.norm(slope, axis=1)
    assert torch.equal(loss.clipped, torch.from_numpy(sizes == 0)) or name == "dpo"  # sigmoid's tail rounds to 0


@pytest.mark.parametrize(
    ("name", "settings"),
    [("nft", {"beta": 0.1}), ("awm", {"power": 1.0}), ("awm", {"power": 0.5}), ("dpo", {"beta": 10.0})],
)
def test_settings(name, settings):
    d = drawn(7, 0.1)
    loss, gradient = value_and_gradient(name, d, objective_settings=settings)
    value, slope = BY_HAND[name](d, **settings)
    assert loss.value.detach().numpy() == pytest.approx(value, rel=1e-10, abs=1e-12)
    assert gradient == pytest.approx(slope, rel=1e-10, abs=1e-14)


@pytest.mark.parametrize("n", [0.0, 1.0, 2.0])
def test_weight_of_awm(n):
    """ℓ, σℓ and σ²ℓ."""
    d = drawn(8, 0.1)
    loss, _ = value_and_gradient("awm", d, objective_settings={"power": 1.0, "sigma_power": n})
    expected = d.sigma**n * (error(d, d.old)[0] - error(d, d.v)[0])
    assert loss.log_ratio.detach().numpy() == pytest.approx(expected, rel=1e-9)


def test_some_videos_are_held_and_some_are_not():
    """Or the tests above would see one side only."""
    for name in (*ON_STEPS, "awm"):
        settings = {"clip": 0.02} if name == "awm" else {}
        held = [objective(name, **settings).loss(inputs_of(drawn(3, spread))).clipped for spread in SPREADS]
        assert not held[0].any(), name
        assert 0 < held[-1].sum() < VIDEOS, name


def test_where_those_on_steps_are_one():
    """At the old policy the gradients of `dppo` and `grpo` are equal, and `guard`'s is s times theirs."""
    d = drawn(4, 0.0)
    slopes = {name: value_and_gradient(name, d)[1] for name in ON_STEPS}
    assert np.array_equal(slopes["grpo"], slopes["dppo"])
    assert slopes["guard"] == pytest.approx(slopes["grpo"] * d.b / d.k, rel=1e-12)
    far = drawn(5, 0.3)
    wide, _ = value_and_gradient("grpo", far, clip=1e9)
    free, _ = value_and_gradient("dppo", far, objective_settings={"divergence": 1e9})
    assert torch.equal(wide.value, free.value)  # what holds them is all that differs


@pytest.mark.parametrize("beta", [1.0, 0.1])
def test_nft_at_the_old_policy_is_awm_with_an_adaptive_weight(beta):
    """-2σ²A(v* - v)/w; the gradient of AWM with p = 1, n = 2 is the same with w = 1."""
    d = drawn(6, 0.0)
    _, slope = value_and_gradient("nft", d, objective_settings={"beta": beta})
    plain = {"power": 1.0, "sigma_power": 2.0}
    _, matched = value_and_gradient("awm", d, objective_settings=plain)
    w = np.abs(d.sigma * (d.target - d.v)).mean(1)[:, None]
    assert slope == pytest.approx(-2 * d.sigma**2 * d.advantage[:, None] * (d.target - d.v) / w / SIZE, rel=1e-10)
    assert slope == pytest.approx(matched / w, rel=1e-10)


@pytest.mark.parametrize("name", BY_HAND)
def test_log_ratio_is_0_at_the_old_policy(name):
    """To the bit, in single precision too."""
    inputs = inputs_of(drawn(9, 0.0))
    single = {k: x.float() if isinstance(x, torch.Tensor) else x for k, x in vars(inputs).items()}
    for told in (inputs, LossInputs(**single)):
        assert not objective(name).loss(told).log_ratio.any()


def test_old_policy_of_nft():
    """The decay of its average rises by 0.001 an iteration up to 0.5."""
    nft = objective("nft")
    assert [nft.old_decay(n) for n in (0, 1, 100, 500, 9000)] == [0, 0.001, 0.1, 0.5, 0.5]
    assert all(objective(name).old_decay(0) is None for name in BY_HAND if name != "nft")


def test_guard_weighs_as_the_equalizer_does_for_its_kernel():
    """Up to a constant, for the kernel that it was made for."""
    table = kernel_table("flow", sigma_schedule(20, 3.0), 0.7)
    own, ours = objective("guard").step_weights(table), equalizer(table)
    on = table.stochastic
    assert own[on].mean().item() == pytest.approx(1)
    assert not own[~on].any()
    effective = (own * table.s / ours)[on][1:]  # of the exact log-ratio; at the first step the kernel cuts its noise
    assert effective.numpy() == pytest.approx(effective[0].item(), rel=1e-9)


ODE = {"eta": 0, "shared_initial_noise": False}


def test_dppo_is_grpo_to_the_bit_where_the_policy_is_the_old_one():
    """One update of a fresh rollout: no limit acts, so there is one result for both, in the comparison too."""
    v, noise, clean = torch.randn(3, 4, 2, 3, generator=torch.Generator().manual_seed(0))
    advantage = torch.tensor([1.0, -2.0, 0.5, -0.1])
    found = {}
    for name in ("grpo", "dppo"):
        leaf = v.clone().requires_grad_()
        inputs = LossInputs(leaf, v.clone(), None, 0.6, noise, clean, advantage, b=-0.1, k=-0.8)
        loss = objective(name).loss(inputs)
        loss.value.sum().backward()
        found[name] = (loss.value.detach(), leaf.grad, loss.clipped)
    assert all(torch.equal(a, b) for a, b in zip(*found.values(), strict=True))
    assert found["grpo"][1].any()


@pytest.mark.parametrize(
    ("policy", "others", "message"),
    [
        ({"objective": "gpro"}, {}, "policy.objective: there is no 'gpro'; did you mean 'grpo'?"),
        ({"objective": "dppo", "clip": 1e-3}, {}, "policy.clip: the objective 'dppo' has no 'clip'; it has divergence"),
        ({"objective_settings": {"tau": 1}}, {}, "policy.objective_settings.tau: the objective 'grpo' has no 'tau'"),
        ({"objective": "nft"}, {}, "policy.points: the objective 'nft' trains on videos with fresh noise"),
        ({"points": 4}, {"sampling": ODE}, "policy.points=4: the objective 'grpo' trains on the stochastic steps"),
        ({"objective": "awm", "points": 4}, {}, "the rollout needs none along its way; use sampling.eta=0"),
        (
            {"objective": "awm", "points": 4},
            {"sampling": {"eta": 0}},
            "a group's videos would be alike; use sampling.shared_initial_noise=false",
        ),
        ({"objective": "dpo", "points": 4}, {"sampling": ODE}, "use policy.select=1"),
        (
            {"objective": "dpo", "points": 4, "select": 1, "batch_size": 3},
            {"sampling": ODE},
            "policy.batch_size=3: the objective 'dpo' needs both videos of a pair in a batch",
        ),
        (
            {"objective": "dpo", "points": 4, "select": 1},
            {"sampling": ODE, "kl": {"anchor": "none"}},
            "kl.anchor: the objective 'dpo' compares with the anchor",
        ),
        ({"objective": "dppo", "objective_settings": {"divergence": 0}}, {}, "divergence is 0; it must be above 0"),
        (
            {"objective": "nft", "points": 4, "objective_settings": {"decay": 1}},
            {"sampling": ODE},
            "policy.objective_settings: decay is 1",
        ),
    ],
)
def test_mistakes(policy, others, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        chosen_objective(AlgorithmConfig(policy=policy, **others))
