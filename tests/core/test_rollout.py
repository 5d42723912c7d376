"""Noise by key, and chains that end where the closed form says."""

import math

import numpy as np
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from gaussian_model import GaussianModel
from oracle import linear_velocity
from sage_grpo.core.callback import Callback
from sage_grpo.core.protocols import Prompt
from sage_grpo.core.rollout import keyed_noise, keyed_rng, sample
from sage_grpo.math.kernels import kernel_table
from sage_grpo.math.schedule import sigma_schedule
from support import FunctionReward, Rank, make_config, make_loop, mean_brightness

CPU = torch.device("cpu")


def test_noise_is_a_function_of_its_key():
    once = keyed_noise((3, 4), [(0, 1, 2), (0, 1, 3)], CPU)
    again = keyed_noise((3, 4), [(0, 1, 3), (0, 1, 2)], CPU)
    assert torch.equal(once, again.flip(0))
    assert not torch.equal(once[0], once[1])
    assert not torch.equal(keyed_noise((3, 4), [(0, 12, 3)], CPU), keyed_noise((3, 4), [(0, 1, 23)], CPU))


def test_noise_is_standard_normal_and_uncorrelated_across_keys():
    draws = keyed_noise((1000,), [(7, 0, i, t) for i in range(20) for t in range(10)], CPU).double()
    assert draws.mean().abs() < 4 / math.sqrt(draws.numel())
    assert draws.var().item() == pytest.approx(1, abs=4 * math.sqrt(2 / draws.numel()))
    correlation = np.corrcoef(draws.numpy())[np.triu_indices(len(draws), 1)]
    assert np.abs(correlation).max() < 5.5 / math.sqrt(1000)  # 19,900 pairs


def test_keys_have_the_same_stream_forever():
    """A change of the generator would change every run: these numbers are the contract."""
    assert keyed_rng(0, 1, 2, "initial").integers(0, 2**31, 3).tolist() == [1124136416, 697255137, 1816036743]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "order"),
    [*((n, 1) for n in ("ode", "dance", "flow", "sage", "cps", "precise")), ("ode", 2), ("precise", 2)],
)
def test_chain_has_the_moments_of_the_closed_form(name, order):
    """4,000 sampled chains on the exact velocity against exactly propagated mean and variance."""
    model, n = GaussianModel((1, 1, 1, 2), thin=0.3), 4000
    table = kernel_table(name, sigma_schedule(8, 3.0), 0.7, order)
    keys = [(11, i) for i in range(n)]
    x0 = sample(model, [Prompt("one")] * n, table, keys, keys).x0.flatten(1).double()
    mean_of_prompt = model.encode([Prompt("one")])["mean"][0].double()
    for dim, (std, centre) in enumerate(zip(model.std.tolist(), mean_of_prompt.tolist(), strict=True)):
        # of the state and of the clean estimate one step before
        means, covariance = np.zeros(2), np.diag([1.0, 0.0])
        columns = (table.sigma, table.a, table.b, table.e, table.s)
        for sigma, a, b, e, s in zip(*(c.tolist() for c in columns), strict=True):
            slope, _ = linear_velocity(sigma, std)
            step = np.array([[a + b * slope, e], [1 - sigma * slope, 0.0]])
            means = step @ means - (slope * (1 - sigma) + 1) * centre * np.array([b, -sigma])
            covariance = step @ covariance @ step.T + np.diag([s**2, 0.0])
        mean, variance, got = means[0], covariance[0, 0], x0[:, dim]
        assert got.mean().item() == pytest.approx(mean, abs=4 * math.sqrt(variance / n) + 1e-5)
        assert got.var().item() == pytest.approx(variance, rel=4 * math.sqrt(2 / n) + 1e-4)


def test_mixed_shapes_in_a_batch_are_refused():
    model = GaussianModel()
    model.latent_shape = lambda prompt: (1, len(prompt.text), 2, 2)
    table = kernel_table("sage", sigma_schedule(4), 0.7)
    with pytest.raises(ValueError, match=r"one latent shape.*batch_size=1"):
        sample(model, [Prompt("a"), Prompt("ab")], table, [(0,), (1,)], [(0,), (1,)])


def test_shared_or_separate_initial_noise():
    def first_states(shared):
        loop, _ = make_loop(make_config(sampling={"shared_initial_noise": shared}))
        return loop.rollout().trajectories[0].points[0].x

    shared, separate = first_states(True), first_states(False)
    assert all(torch.equal(shared[0], shared[i]) for i in range(4))  # num_generations = 4
    assert not torch.equal(shared[0], shared[4])
    assert len({tuple(row.flatten().tolist()) for row in separate}) == 8
    assert torch.equal(shared[0], separate[0])


@pytest.mark.parametrize("world", [1, 2, 4])
def test_rollouts_do_not_depend_on_the_number_of_processes(world):
    """Groups may span ranks: with 4 processes each holds 2 of the 4 rollouts of a prompt."""
    config = make_config(policy={"batch_size": 2})
    alone, _ = make_loop(config)
    expected = torch.cat([t.x0 for t in alone.rollout().trajectories])
    parts = []
    for rank in range(world):
        loop, _ = make_loop(config, comm=Rank(rank, world))
        parts += [t.x0 for t in loop.rollout().trajectories]
    assert torch.equal(torch.cat(parts), expected)


def test_a_layout_that_does_not_divide_names_the_nearest():
    with pytest.raises(ValueError, match="8 rollouts do not divide into 3 replicas × batch_size 1; use 6 or 9"):
        make_loop(make_config(policy={"batch_size": 1}), comm=Rank(0, 3))


def test_last_step_convention():
    for convention, expected in (("ode", 5), ("kernel", 6)):
        loop, _ = make_loop(make_config(sampling={"last_step": convention}))
        assert int(loop.table.stochastic.sum()) == expected


def test_a_kernel_without_noise_is_refused():
    with pytest.raises(ValueError, match="no noise to learn from"):
        make_loop(make_config(sampling={"kernel": "ode"}))


@pytest.mark.parametrize(("groupwise", "batch"), [(False, 4), (True, 2), (True, 4), (True, 8)])
def test_videos_are_held_once_and_let_go_before_training(groupwise, batch):
    """What is scored is the very memory of what was decoded; in the updates it is free."""
    scored, freed = [], []

    def look(videos):
        scored.append(StorageWeakRef(videos.untyped_storage()))
        return mean_brightness(videos)

    class Watching(Callback):
        def on_rollout(self, loop, rollouts, scores, valid):
            held = {StorageWeakRef(videos.frames.untyped_storage()).cdata for videos in rollouts.videos}
            assert held == {storage.cdata for storage in scored}
            assert [len(videos) for videos in rollouts.videos] == [batch] * (8 // batch)

        def on_update(self, loop, result):
            freed.append(all(storage.expired() for storage in scored))

    reward = FunctionReward(look)
    reward.groupwise = groupwise
    config = make_config(policy={"prompts_per_iteration": 2, "num_generations": 4, "batch_size": batch})
    loop, _ = make_loop(config, reward=reward)
    loop.callbacks = [Watching()]
    loop.iterate()
    assert freed
    assert all(freed)
