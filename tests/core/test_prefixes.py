"""What rollouts of a group have in common is computed once, and changes nothing but the cost."""

import pytest
import torch

from gaussian_model import GaussianModel
from sage_grpo.core import collect as module
from support import Rank, make_config, make_loop, perturbed

SAMPLING = {"steps": 8, "window": {"size": 2, "start": 3}}


def counting(model):
    """Rows of every pass, as the network sees them."""
    rows = []
    model.module.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    return rows


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("batch", [1, 2, 4, 8])
def test_it_equals_the_unshared_one(batch, order, monkeypatch):
    config = make_config(sampling=SAMPLING | {"order": order}, policy={"batch_size": batch})
    shared, _ = make_loop(config, model=perturbed(GaussianModel()))
    found = shared.rollout().trajectories
    monkeypatch.setattr(module, "Prefixes", lambda: None)
    plain, _ = make_loop(config, model=perturbed(GaussianModel()))
    for mine, other in zip(found, plain.rollout().trajectories, strict=True):
        assert list(mine.points) == list(other.points) == [3, 4]
        assert torch.allclose(mine.x0, other.x0, rtol=0, atol=1e-5)
        for step, point in mine.points.items():
            assert torch.equal(point.noise, other.points[step].noise)
            assert torch.allclose(point.x, other.points[step].x, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("batch", "passes"), [(8, [2] * 3 + [8] * 5), (2, ([1] * 3 + [2] * 5 + [2] * 5) * 2)])
def test_it_is_walked_once_a_group(batch, passes):
    """Two groups of four: both at once in a batch of eight; in batches of two, each group's first batch walks it."""
    model = perturbed(GaussianModel())
    rows = counting(model)
    loop, _ = make_loop(make_config(sampling=SAMPLING, policy={"batch_size": batch}), model=model)
    loop.rollout()
    assert rows == passes == loop.windows.passes(0)[0]


def test_separate_noise_shares_nothing():
    model = perturbed(GaussianModel())
    rows = counting(model)
    loop, _ = make_loop(make_config(sampling=SAMPLING | {"shared_initial_noise": False}), model=model)
    loop.rollout()
    assert sum(rows) == 8 * 8


@pytest.mark.parametrize("window", [{"size": 2, "start": 3}, {"size": 1, "per": "prompt"}])
@pytest.mark.parametrize("tail", [1.0, 0.4])
@pytest.mark.parametrize("world", [1, 2, 3, 6])
def test_every_process_makes_as_many_passes(world, tail, window):
    """Groups of four over processes that hold twelve, six, four and two rollouts, in batches of two."""
    policy = {"prompts_per_iteration": 3, "num_generations": 4, "batch_size": 2}
    config = make_config(sampling={"steps": 8, "window": window, "tail": tail}, policy=policy)
    for iteration in range(3):
        made, needed = [], []
        for rank in range(world):
            model = perturbed(GaussianModel())
            rows = counting(model)
            loop, _ = make_loop(config, model=model, comm=Rank(rank, world))
            loop.iteration = iteration
            loop.rollout()
            made.append(rows)
            needed.append(loop.windows.passes(iteration)[rank])
        assert made == needed
        assert len(set(map(len, made))) == 1
