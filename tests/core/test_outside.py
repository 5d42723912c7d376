"""The trust region outside the window: where it acts, what it costs, and that it holds what nothing else holds."""

from dataclasses import replace

import pytest
import torch

from gaussian_model import GaussianModel
from sage_grpo.config import RecipeConfig
from sage_grpo.core.anchor import ANCHOR
from sage_grpo.core.outside import INITIAL, initial_velocities, noised_videos, velocity_change
from sage_grpo.core.passes import forward_passes
from sage_grpo.core.rollout import velocity_at
from sage_grpo.core.update import UpdateStep, update
from sage_grpo.math.schedule import sigma_schedule
from support import Rank, make_config, make_loop, objective_config, perturbed, weights

EARLY = {"window": {"range": (0.0, 0.4), "size": 1}}  # steps 0 and 1 of 6


def early_config(**kl):
    return make_config(sampling=EARLY, kl={"anchor": "none"} | kl)


def batches_of(loop):
    rollouts = loop.rollout()
    count = loop.config.policy.prompts_per_iteration, loop.config.policy.num_generations
    advantage = torch.randn(count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return loop.prepare(rollouts.trajectories, advantage, torch.ones(count, dtype=torch.bool))[0]


def test_the_levels_are_those_that_no_window_trains():
    loop, _ = make_loop(early_config(outside_weight=1.0))
    assert loop.windows.untrained_levels == sigma_schedule(6, 3.0)[2:6].tolist()
    fixed, _ = make_loop(make_config(sampling={"window": {"size": 2, "start": 1}}, kl={"outside_weight": 1.0}))
    assert fixed.windows.untrained_levels == sigma_schedule(6, 3.0)[[0, 3, 4, 5]].tolist()


def test_the_last_step_is_untrained_if_the_window_is_everywhere():
    loop, _ = make_loop(make_config(kl={"outside_weight": 1.0}))
    assert loop.windows.untrained_levels == sigma_schedule(6, 3.0)[5:6].tolist()


def test_refused_where_every_level_is_trained():
    with pytest.raises(ValueError, match=r"all are trained; set a sampling\.window\.range"):
        make_config(sampling={"last_step": "kernel"}, kl={"outside_weight": 1.0})


def test_an_objective_that_trains_everywhere_has_no_outside():
    loop, seen = make_loop(objective_config("awm", kl={"outside_weight": 1.0, "anchor": "none"}))
    loop.iterate()
    assert seen.updates[0].outside is None
    assert INITIAL not in loop.bank


def test_every_level_comes_and_the_share_is_kept():
    loop, _ = make_loop(early_config(outside_weight=1.0, outside_share=0.3))
    batches, seen, count = batches_of(loop), set(), 0
    for number in range(200):
        for videos in noised_videos(batches, loop.windows.untrained_levels, 8, loop.config, loop.comm, number):
            seen |= set(videos.sigma.tolist())
            count += len(videos.sigma)
    assert seen == {torch.tensor(level).item() for level in loop.windows.untrained_levels}
    assert count / (200 * 8) == pytest.approx(0.3, abs=0.02)


def test_the_draw_does_not_depend_on_how_ranks_share_the_videos():
    config = make_config(sampling=EARLY, policy={"batch_size": 2}, kl={"outside_weight": 1.0, "outside_share": 0.5})
    loop, _ = make_loop(config)
    batches, levels = batches_of(loop), loop.windows.untrained_levels
    alone = noised_videos(batches, levels, 8, config, Rank(0, 1), 3)
    shared = [
        videos
        for rank in (0, 1)
        for videos in noised_videos(batches[2 * rank :][:2], levels, 8, config, Rank(rank, 2), 3)
    ]
    assert len(alone) == len(shared) == 4
    for one, other in zip(alone, shared, strict=True):
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.sigma, other.sigma)
    assert all(torch.equal(videos.sigma, alone[0].sigma) for videos in alone)  # one expert at a time


def test_the_penalty_is_the_mean_squared_change_of_the_velocity():
    """Against a loop over videos, with a network that differs from the initial one; videos of weight 0 are free."""
    loop, _ = make_loop(early_config(outside_weight=1.0, outside_share=0.5), model=perturbed(GaussianModel()))
    batches = batches_of(loop)
    batches = [replace(batch, weight=(torch.arange(8) % 3 > 0).double()) for batch in batches]
    loop.bank.save(INITIAL)
    initial = GaussianModel()
    initial.module.load_state_dict(loop.model.module.state_dict())
    perturbed(loop.model)
    videos = noised_videos(batches, loop.windows.untrained_levels, 8, loop.config, loop.comm, 0)
    held = initial_velocities(loop.model, loop.bank, videos)
    penalty = sum(velocity_change(loop.model, batch, v) for batch, v in zip(videos, held, strict=True))
    expected, drawn = 0.0, 0
    for batch in videos:
        for i, sigma in enumerate(batch.sigma.tolist()):
            x, condition = batch.x[i : i + 1], {name: value[i : i + 1] for name, value in batch.condition.items()}
            change = velocity_at(loop.model, x, sigma, condition) - velocity_at(initial, x, sigma, condition)
            expected += change.square().mean().item() if batch.weight[i] > 0 else 0.0
            drawn += 1
    assert drawn == 4 * len(batches)
    assert penalty.item() == pytest.approx(expected / drawn, rel=1e-4)


def end(weight, share=1.0):
    loop, seen = make_loop(early_config(outside_weight=weight, outside_share=share), model=perturbed(GaussianModel()))
    start = GaussianModel()
    start.module.load_state_dict(loop.model.module.state_dict())
    loop.run(20)
    sigmas, x = sigma_schedule(6, 3.0)[:-1].tolist(), torch.randn(64, 1, 4, 2, 2)
    condition = loop.model.encode([p for p in loop.prompts(0, 4) for _ in range(16)])
    with torch.no_grad():
        change = [
            (velocity_at(loop.model, x, s, condition) - velocity_at(start, x, s, condition)).square().mean().item()
            for s in sigmas
        ]
    return change, seen


def test_it_holds_what_nothing_else_holds():
    """An update of noisy steps also changes the others: with the penalty far less, and the trained ones still move."""
    torch.manual_seed(0)
    free, _ = end(0.0)
    held, seen = end(30.0)
    assert sum(held[2:]) < 0.5 * sum(free[2:])
    assert sum(held[:2]) > 0
    assert seen.updates[0].outside == 0  # the policy is still the initial one
    assert seen.updates[-1].outside > 0
    assert seen.metrics[-1]["kl/outside"] == seen.updates[-1].outside


def test_nothing_is_kept_or_measured_without_it():
    loop, seen = make_loop(early_config())
    loop.iterate()
    assert INITIAL not in loop.bank
    assert seen.updates[0].outside is None
    assert "kl/outside" not in seen.metrics[0]


def test_the_initial_policy_is_that_before_the_first_update():
    loop, _ = make_loop(early_config(outside_weight=1.0, anchor="moving", ref_model_sync_steps=1))
    start = weights(loop)
    loop.run(3)
    saved = loop.bank.state_dict()
    assert torch.equal(torch.cat([t.double().flatten() for t in saved[INITIAL].values()]), start)
    assert not torch.equal(torch.cat([t.double().flatten() for t in saved[ANCHOR].values()]), start)


def test_what_is_not_finite_is_not_stepped():
    loop, _ = make_loop(early_config(outside_weight=1.0))
    loop.iterate()
    before, batches = weights(loop), batches_of(loop)
    outside = noised_videos(batches, [float("nan")], 8, loop.config, loop.comm, 0)
    step = UpdateStep(loop.objective, loop.equalizer, loop.kl_weight.value, 8, outside=outside)
    batches = [replace(batch, steps=list(batch.trajectory.points)) for batch in batches]
    result = update(loop.model, batches, step, loop.config, optimizer=loop.optimizer, bank=loop.bank, comm=loop.comm)
    assert not result.stepped
    assert torch.equal(weights(loop), before)


def test_its_passes_are_counted():
    """A quarter of the videos is evaluated twice, and once backwards: by hooks, against the count from settings."""
    settings = early_config(outside_weight=1.0, outside_share=0.25)
    recipe = RecipeConfig(
        **{name: getattr(settings, name) for name in ("sampling", "policy", "kl")},
        model={"type": "shapes"},
        rewards=[{"type": "shapes"}],
        run={"out": "unused", "iterations": 8},
    )
    rows = {"forward": 0, "backward": 0}
    model = GaussianModel()

    def count(module, inputs, out):
        rows["forward"] += len(out)
        if out.requires_grad:
            out.register_hook(lambda gradient: rows.__setitem__("backward", rows["backward"] + len(gradient)))

    model.module.register_forward_hook(count)
    loop, _ = make_loop(settings, model=model)
    loop._checked = True  # the checks run once per run
    loop.run(8)
    assert (rows["forward"] + 2 * rows["backward"]) / 8 == pytest.approx(forward_passes(recipe))


@pytest.mark.parametrize("size", [1, 2, 8])
@pytest.mark.parametrize("kept", [8, 5])
def test_the_penalty_is_a_mean_over_the_videos_of_the_loss(size, kept):
    """In expectation over the draw, at any batch size, and where batches are filled up with videos of weight 0."""
    config = make_config(sampling=EARLY, policy={"batch_size": size}, kl={"outside_weight": 1.0})
    loop, _ = make_loop(config)
    batches, left = [], kept
    for batch in batches_of(loop):
        count = min(left, size)
        batches.append(replace(batch, weight=(torch.arange(size) < count).double()))
        left -= count
    total, updates = 0.0, 2000
    for number in range(updates):
        drawn = noised_videos(batches, [0.1], kept, config, loop.comm, number)
        total += sum(videos.weight.sum().item() for videos in drawn)
    assert total / updates == pytest.approx(1, abs=0.12)
