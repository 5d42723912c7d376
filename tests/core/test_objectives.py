"""Every objective in the whole loop: ratio 1 at first, right direction, right references, resumed to the bit."""

from collections import Counter
from dataclasses import dataclass, replace

import pytest
import torch

from gaussian_model import GaussianModel
from sage_grpo.config import RecipeConfig
from sage_grpo.core.callback import Callback
from sage_grpo.core.checks import SilentTraining
from sage_grpo.core.objectives import OLD
from sage_grpo.core.passes import forward_passes
from sage_grpo.core.renoise import noise_levels
from sage_grpo.core.rollout import sample
from sage_grpo.core.update import update
from sage_grpo.math.kernels import kernel_table
from sage_grpo.math.objectives import OBJECTIVES, Loss
from sage_grpo.math.schedule import sigma_schedule
from support import (
    Rank,
    make_loop,
    mean_brightness,
    numbered_prompts,
    objective_config,
    perturbed,
    weights,
)

NAMES = sorted(OBJECTIVES)
NOISED = [name for name in NAMES if OBJECTIVES[name].renoised]


@pytest.mark.parametrize("updates", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_has_moved_before_the_first_update(name, updates):
    config = objective_config(name, policy={"num_iterations": updates})
    loop, seen = make_loop(config, model=perturbed(GaussianModel()))
    loop.iterate()
    first = seen.updates[0]
    assert first.per_step["ratio"] == [1.0] * len(first.steps)
    assert first.per_step["kl_old"] == [0.0] * len(first.steps)
    assert first.grad_norm > 0
    assert seen.metrics[0]["replay_deviation"] == 0.0
    assert [set(u.per_step["ratio"]) == {1.0} for u in seen.updates] == [True, False][:updates]


BEST = 160.0  # brightness


def distance_to_best(model):
    """Of the mean of plain ODE samples, always from the same noise."""
    keys = [("judged", i) for i in range(32)]
    table = kernel_table("ode", sigma_schedule(6, 3.0), 0.0)
    videos = model.decode(sample(model, numbered_prompts(0, 4) * 8, table, keys, keys).x0)
    return (mean_brightness(videos).mean() - BEST).abs()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_mean_moves_to_a_known_optimum(name):
    """Over ten seeds its distance falls by more than three standard errors."""
    gained = []
    for seed in range(10):
        loop, _ = make_loop(
            objective_config(name, seed=seed, policy={"prompts_per_iteration": 4}, kl={"high": 0.0, "low": 0.0}),
            model=GaussianModel(seed=seed),
            reward=lambda videos: -(mean_brightness(videos) - BEST).abs(),
            prompts=lambda start, count: numbered_prompts(0, count),
        )
        before = distance_to_best(loop.model)
        loop.run(8)
        gained.append(before - distance_to_best(loop.model))
    gained = torch.stack(gained)
    assert gained.mean() > 3 * gained.std() / len(gained) ** 0.5, gained


@pytest.mark.parametrize("name", NAMES)
def test_resumed_is_bit_equal(name):
    policy = {"num_iterations": 2, "batch_size": 2, "objective_settings": {"decay_rise": 0.2} if name == "nft" else {}}
    kl = {"ref_model_sync_steps": 3, "decay": 0.5}
    config = objective_config(name, policy=policy, kl=kl)
    straight, _ = make_loop(config)
    straight.run(5)
    broken, _ = make_loop(config)
    broken.run(3)
    other, _ = make_loop(config, model=perturbed(GaussianModel(seed=7)))
    other.load_state_dict(broken.state_dict())
    other.run(5)
    assert torch.equal(weights(straight), weights(other))


@pytest.mark.parametrize("select", [None, 1])
@pytest.mark.parametrize("updates", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_passes_are_as_counted(name, updates, select):
    """Rows that the network is asked for, by a hook: forward passes, and those with gradient twice more."""
    model, rows = GaussianModel(), Counter()
    policy = {"num_iterations": updates, "batch_size": 2, "select": 1 if name == "dpo" else select}
    config = objective_config(name, policy=policy, kl={"ref_model_sync_steps": 2})
    recipe = RecipeConfig(**config.model_dump(), run={"iterations": 6}, rewards=[])

    def count(module, args, out):
        rows[loop.iteration] += len(args[0]) * (3 if torch.is_grad_enabled() else 1)

    loop, _ = make_loop(config, model=model)
    loop._checked = True  # the gates inputs once per run
    model.module.register_forward_hook(count)
    loop.run(6)
    assert sum(rows.values()) / 6 == pytest.approx(forward_passes(recipe))


def test_noise_levels():
    """One from each part of the sampler's time, from noise to data, others in every iteration."""
    config = objective_config("awm", policy={"points": 5}, sampling={"shift": 1.0})
    drawn = [noise_levels(config, iteration) for iteration in range(20)]
    for levels in drawn:
        assert [int(5 * level) for level in levels] == [4, 3, 2, 1, 0]
    assert len({levels[0] for levels in drawn}) == 20
    assert noise_levels(config, 3) == drawn[3]
    shifted = noise_levels(config.model_copy(update={"sampling": config.sampling.model_copy(update={"shift": 3.0})}), 3)
    assert shifted == pytest.approx([3 * x / (1 + 2 * x) for x in drawn[3]])


class Watch(Callback):
    """What an update is given."""

    def __init__(self, monkeypatch):
        self.batches, self.scales = [], []
        monkeypatch.setattr("sage_grpo.core.loop.update", self.seen)

    def seen(self, model, batches, *rest, **more):
        self.batches.append(batches)
        self.scales.append(model.guidance_scale)
        return update(model, batches, *rest, **more)


def test_points_are_videos_with_fresh_noise(monkeypatch):
    """Standard normal, each video with its own, the same for any batch size and number of ranks."""
    drawn = {}
    for size, rank, world in ((4, 0, 1), (2, 0, 1), (2, 1, 2)):
        watch = Watch(monkeypatch)
        loop, _ = make_loop(objective_config("awm", policy={"batch_size": size}), comm=Rank(rank, world))
        rollouts = loop.rollout()
        paths = loop._renoise(rollouts.trajectories)
        for path in paths:
            for point in path.points.values():  # a target of another scale would not be its noise
                assert torch.equal(point.x, (1 - point.sigma) * path.x0 + point.sigma * point.noise)
        drawn[size, rank, world] = torch.cat([torch.stack([p.noise for p in q.points.values()], 1) for q in paths])
        assert not watch.batches
    whole = drawn[4, 0, 1]
    assert torch.equal(whole, drawn[2, 0, 1])
    assert torch.equal(whole[4:], drawn[2, 1, 2])
    flat = whole.flatten()
    assert abs(flat.mean()) < 4 / len(flat) ** 0.5
    assert abs(flat.var() - 1) < 4 * (2 / len(flat)) ** 0.5
    rows = whole.flatten(0, 1).flatten(1)
    assert len({tuple(row.tolist()) for row in rows}) == len(rows)


def averaged(history, decays):
    old = history[0]
    for after, decay in zip(history[1:], decays, strict=True):
        old = decay * old + (1 - decay) * after
    return old


def test_old_policy_of_nft_is_an_average(monkeypatch):
    """It makes the rollouts, and it is what is remembered at the points; not the policy, and not the anchor."""
    watch = Watch(monkeypatch)
    config = objective_config("nft", policy={"objective_settings": {"decay_rise": 0.3, "decay": 0.6}})
    loop, seen = make_loop(config, model=perturbed(GaussianModel()))
    history = [weights(loop)]
    for _ in range(3):
        loop.iterate()
        history.append(weights(loop))
    expected = averaged(history, [0.0, 0.3, 0.6])
    with loop.bank.using(OLD):
        assert torch.allclose(weights(loop), expected, atol=1e-6)
    assert (expected - history[-1]).abs().max() > 1e-4

    loop.iterate()
    path, rollout = watch.batches[-1][0].trajectory, seen.rollouts[-1].trajectories[0]
    other = GaussianModel()
    with torch.no_grad():
        torch.nn.utils.vector_to_parameters(expected.float(), other.module.parameters())
        point = path.points[0]
        sigma = torch.full((len(point.x),), point.sigma)
        assert torch.allclose(other.velocity(point.x, sigma, path.condition), point.stored, atol=1e-5)
    keys = [(0, 3, i) for i in range(8)]
    again = sample(other, seen.rollouts[-1].prompts, rollout.table, keys, keys)
    assert torch.allclose(again.x0, rollout.x0, atol=1e-5)


def test_old_policy_is_put_in_place_twice_an_iteration(monkeypatch):
    """For the whole rollout and for all points: at full size that moves all weights, each time."""
    loop, _ = make_loop(objective_config("nft", policy={"batch_size": 2}))
    loop.iterate()  # with the gates
    using, names = loop.bank.using, []
    monkeypatch.setattr(loop.bank, "using", lambda name: (names.append(name), using(name))[1])
    loop.iterate()
    assert names.count(OLD) == 2


@pytest.mark.parametrize("name", NAMES)
def test_guidance_is_for_rollouts_where_videos_are_noised(name, monkeypatch):
    watch = Watch(monkeypatch)
    model, asked = GaussianModel(), []
    model.guidance_scale = 3.0
    velocity = model.velocity

    def recorded(*args):
        asked.append((torch.is_grad_enabled(), model.guidance_scale))
        return velocity(*args)

    model.velocity = recorded
    loop, _ = make_loop(objective_config(name), model=model)
    loop.run(1)
    trained = 1.0 if OBJECTIVES[name].renoised else 3.0
    assert set(watch.scales) == {trained}
    assert {scale for gradient, scale in asked if gradient} == {trained}
    assert asked[0] == (False, 3.0)
    assert model.guidance_scale == 3.0


@pytest.mark.parametrize("batch_size", [2, 4, 8])
def test_pairs(batch_size, monkeypatch):
    """Best and worst of a group beside each other, noised alike; a group that cannot be told apart is left out."""
    watch = Watch(monkeypatch)

    def reward(videos):
        values = torch.rand(len(videos), generator=torch.Generator().manual_seed(int(videos.sum())))
        return torch.where(torch.arange(len(videos)) % 3 == 1, torch.nan, values.double())

    policy = {"batch_size": batch_size, "prompts_per_iteration": 4, "num_generations": 4}
    loop, seen = make_loop(objective_config("dpo", policy=policy), reward=reward)
    loop.run(2)
    found = 0
    for batch in (batch for batches in watch.batches for batch in batches):
        for row in range(0, len(batch.weight), 2):
            pair = slice(row, row + 2)
            if batch.weight[pair].any():
                assert batch.weight[pair].all()
                found += 1
                assert batch.advantage[pair].prod() < 0
                mean = batch.trajectory.condition["mean"][pair]
                assert torch.equal(*mean)  # of one prompt
                for point in batch.trajectory.points.values():
                    assert torch.equal(*point.noise[pair])
                assert not torch.equal(*batch.trajectory.x0[pair])
    valid = [v.view(4, 4).sum(1) >= 2 for v in seen.valid]
    assert found == sum(int(v.sum()) for v in valid)


def test_pairs_need_whole_groups_on_a_rank():
    config = objective_config("dpo", policy={"prompts_per_iteration": 1, "batch_size": 2})
    with pytest.raises(ValueError, match="2 replicas do not get whole groups of 4; use a multiple of 2"):
        make_loop(config, comm=Rank(0, 2))


def test_averaged_anchor():
    """It moves by a part at every renewal, and is asked then."""
    config = objective_config("awm", kl={"ref_model_sync_steps": 1, "decay": 0.9, "old_weight": 0.0})
    loop, seen = make_loop(config, model=perturbed(GaussianModel()))
    history = [weights(loop)]
    for _ in range(4):
        loop.iterate()
        history.append(weights(loop))
    with loop.bank.using("anchor"):
        assert torch.allclose(weights(loop), averaged(history[:-1], [0.9] * 3), atol=1e-6)
    moved = [sum(u.per_step["kl_anchor"]) for u in seen.updates]
    assert moved[0] == 0
    assert all(m > 0 for m in moved[1:])


def planted(name, change):
    """An objective with a fault."""

    @dataclass(frozen=True, kw_only=True)
    class Planted(OBJECTIVES[name]):
        def loss(self, inputs):
            return change(super().loss, inputs)

    return Planted


FAULTS = {
    "the sign of the advantage": lambda loss, x: loss(replace(x, advantage=-x.advantage)),
    "the sign of the loss": lambda loss, x: replace(loss(x), value=-loss(x).value),
    "a loss that does not look at the advantage": lambda loss, x: loss(replace(x, advantage=x.advantage.abs())),
    "a detached velocity": lambda loss, x: loss(replace(x, velocity=x.velocity.detach())),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", NAMES)
def test_gate_refuses(name, fault, monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "planted", planted(name, FAULTS[fault]))
    loop, _ = make_loop(objective_config("planted"))
    with pytest.raises(SilentTraining):
        loop.iterate()


def upside_down(loss, inputs):
    """What comes of old and new in each other's place."""
    told = loss(inputs)
    return Loss(-told.value, -told.log_ratio, told.clipped)


@pytest.mark.parametrize("name", ["awm", "grpo"])
def test_gate_refuses_a_ratio_that_is_upside_down(name, monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "planted", planted(name, upside_down))
    loop, _ = make_loop(objective_config("planted"))
    with pytest.raises(SilentTraining, match="upside down"):
        loop.iterate()
