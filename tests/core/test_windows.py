"""Which steps of a rollout are stochastic: size, range, place, and one window for each prompt."""

import pytest
import torch

from gaussian_model import GaussianModel
from support import Rank, make_config, make_loop, perturbed, train, weights


def test_windows_are_shared_and_move():
    config = make_config(sampling={"steps": 12, "window": {"size": 3}})
    loop, seen = make_loop(config)
    loop.run(12)
    starts = []
    for rollouts, result in zip(seen.rollouts, seen.updates, strict=True):
        steps = tuple(rollouts.trajectories[0].points)
        assert steps == tuple(range(steps[0], steps[0] + 3))
        assert sorted(result.steps) == list(steps)
        assert max(steps) < 11  # the last step is the ODE's
        starts.append(steps[0])
    assert len(set(starts)) > 4
    fixed, seen = make_loop(make_config(sampling={"steps": 12, "window": {"size": 3, "start": 2}}))
    fixed.run(2)
    assert [list(r.trajectories[0].points) for r in seen.rollouts] == [[2, 3, 4]] * 2


def test_a_window_of_everything_is_no_window():
    """Its size, or its range, spelled out: the same bits."""
    plain, _ = make_loop(make_config(sampling={"steps": 6}))
    plain.run(2)
    for window in ({"size": 5}, {"range": (0, 1)}, {"size": 5, "start": "progressive"}):
        other, _ = make_loop(make_config(sampling={"steps": 6, "window": window}))
        other.run(2)
        assert torch.equal(weights(other), weights(plain))


def test_a_window_stays_in_its_range():
    config = make_config(sampling={"steps": 13, "window": {"size": 2, "range": (0.25, 0.75)}})
    loop, seen = make_loop(config)
    loop.run(20)
    starts = {next(iter(r.trajectories[0].points)) for r in seen.rollouts}
    assert starts == set(range(3, 8))  # 12 stochastic steps: 3 to 8 may be covered
    whole, seen = make_loop(make_config(sampling={"steps": 13, "window": {"range": (0, 0.5)}}))
    whole.run(1)
    assert list(seen.rollouts[0].trajectories[0].points) == list(range(6))


@pytest.mark.parametrize("order", [1, 2])
def test_a_short_tail_changes_nothing_that_is_trained(order):
    """The way from the window to the video is shorter; states, velocities and weights within it are the same."""
    sampling = {"steps": 12, "window": {"size": 2, "start": 3}, "order": order}
    loops = [
        make_loop(make_config(sampling=sampling | {"tail": tail}), model=perturbed(GaussianModel()))
        for tail in (1.0, 0.4)
    ]
    (whole,), (short,) = (loop.rollout().trajectories for loop, _ in loops)
    assert len(whole.table) == 12
    assert len(short.table) == 5 + 3  # of the seven steps that are left
    for step, point in short.points.items():
        assert torch.equal(point.x, whole.points[step].x)
        assert short.table.k[step] == whole.table.k[step]
    assert (short.x0 - whole.x0).abs().max() > 0
    apart = (short.x0 - whole.x0).norm() / whole.x0.norm()
    assert apart < 0.2  # and the videos are nearly the same
    assert torch.equal(loops[0][0].equalizer, loops[1][0].equalizer)


def test_a_progressive_window_goes_from_noise_to_data_and_begins_again():
    window = {"size": 2, "start": "progressive", "every": 2, "range": (0, 0.5)}
    loop, seen = make_loop(make_config(sampling={"steps": 9, "window": window}))
    loop.run(8)
    assert [next(iter(r.trajectories[0].points)) for r in seen.rollouts] == [0, 0, 1, 1, 2, 2, 0, 0]


def test_each_prompt_has_its_window():
    """Shared within a group, whatever the batches and ranks are; each batch is trained at its own steps."""
    many = {"prompts_per_iteration": 6, "num_generations": 4, "batch_size": 2}
    config = make_config(sampling={"steps": 12, "window": {"size": 2, "per": "prompt"}}, policy=many)
    loop, seen = make_loop(config)
    loop.iterate()
    windows = [tuple(t.points) for t in seen.rollouts[0].trajectories]
    assert windows[::2] == windows[1::2]
    assert len(set(windows)) > 2
    (result,) = seen.updates
    assert result.steps == tuple(sorted({step for window in windows for step in window}))
    shares = [sum(step in window for window in windows) * 2 for step in result.steps]
    assert result.per_step["weight"] == [1.0] * len(result.steps)
    assert sum(shares) == 24 * 2
    parts = []
    for rank in range(2):
        part, _ = make_loop(config, comm=Rank(rank, 2))
        parts += [tuple(t.points) for t in part.rollout().trajectories]
    assert parts == windows


def test_experts_on_several_processes_share_a_window():
    """One process would gather the weights of an expert that another does not ask."""
    config = make_config(sampling={"window": {"size": 1, "per": "prompt"}}, policy={"batch_size": 4})
    model = GaussianModel()
    model.module = torch.nn.ModuleDict({"transformer": model.module, "transformer_2": torch.nn.Linear(1, 1)})
    make_loop(config, model=model)
    with pytest.raises(ValueError, match=r"use sampling\.window\.per=iteration"):
        make_loop(config, model=model, comm=Rank(0, 2))


def test_the_gradient_of_mixed_windows_is_the_mean_of_theirs():
    """Two prompts at two windows give half of what each gives alone, for the loss is a mean over samples."""
    config = make_config(
        sampling={"steps": 8, "window": {"size": 1, "per": "prompt"}},
        policy={"prompts_per_iteration": 2, "num_generations": 4, "batch_size": 4, "max_grad_norm": 1e9},
    )

    def gradient(*prompts):
        model = perturbed(GaussianModel())
        loop, _ = make_loop(config, model=model)
        loop.optimizer = torch.optim.SGD(model.module.parameters(), lr=1.0)
        paths = loop.rollout().trajectories
        assert list(paths[0].points) != list(paths[1].points)
        advantage = torch.tensor([[1.0, -1, 2, -2], [0.5, 1, -1, -0.5]])
        used = torch.zeros(2, 4, dtype=torch.bool)
        used[list(prompts)] = True
        before = weights(loop)
        train(loop, paths, advantage, used)
        return before - weights(loop)

    both, first, second = gradient(0, 1), gradient(0), gradient(1)
    assert (both - (first + second) / 2).norm() < 1e-5 * both.norm()
    assert (first - second).norm() > 0.1 * both.norm()
