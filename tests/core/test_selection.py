"""Passes that teach nothing are not made, and what is trained stays the same."""

from dataclasses import replace

import pytest
import torch

from gaussian_model import GaussianModel
from sage_grpo.core import loop as module
from sage_grpo.core.anchor import evaluated_places
from sage_grpo.core.selection import best_and_worst
from support import make_config, make_loop, perturbed, train, weights

ADVANTAGE = torch.tensor([[1.0, -1.0, 0.5, -0.5], [0.0, 0.0, 0.0, 0.0], [2.0, 0.1, -0.1, -2.0]])
USED = torch.ones(3, 4, dtype=torch.bool)


def trained(advantage=ADVANTAGE, used=USED, model=None, **sections):
    """The gradient of one update (plain SGD with rate 1, no clipping), and the rows of its passes with gradient."""
    model = model or perturbed(GaussianModel())
    policy = {"prompts_per_iteration": 3, "num_generations": 4, "max_grad_norm": 1e9, "batch_size": 2}
    config = make_config(policy=policy | sections.pop("policy", {}), **sections)
    loop, _ = make_loop(config, model=model)
    loop.optimizer = torch.optim.SGD(model.module.parameters(), lr=1.0)
    paths, before, rows = loop.rollout().trajectories, weights(loop), []
    model.module.register_forward_pre_hook(lambda _, x: rows.append(len(x[0])) if torch.is_grad_enabled() else None)
    train(loop, paths, advantage, used)
    return before - weights(loop), rows


@pytest.mark.parametrize("batch", [1, 2, 4, 12])
def test_a_skipped_group_costs_nothing_and_changes_nothing(batch):
    """Beside the KL, which has no weight here, its gradient is 0."""
    none = {"high": 0.0, "low": 0.0, "anchor": "none"}
    gradient, rows = trained(policy={"batch_size": batch, "flat_groups": "skip"}, kl=none)
    whole, more = trained(policy={"batch_size": batch}, kl=none)
    assert (gradient - whole).norm() < 1e-6 * whole.norm()
    assert whole.norm() > 0
    if batch < 12:
        assert 3 * sum(rows) == 2 * sum(more)
    assert set(rows) == set(more) == {batch}  # batches of the rollout's size: replay rounds as the rollout did


def test_no_signal_at_all_is_no_update():
    gradient, rows = trained(advantage=torch.zeros(3, 4), policy={"flat_groups": "skip"})
    assert not rows
    assert gradient.norm() == 0


def test_the_kl_holds_a_flat_group_unless_it_is_skipped():
    """Which is why groups are not skipped by default: away from the anchor their gradient is not 0."""

    def pulled(flat_groups):
        model = perturbed(GaussianModel())
        kl = {"anchor": "fixed", "high": 0.5, "low": 0.5}
        policy = {"prompts_per_iteration": 1, "num_generations": 4, "batch_size": 2, "flat_groups": flat_groups}
        loop, _ = make_loop(make_config(kl=kl, policy=policy), model=model)
        loop.optimizer = torch.optim.SGD(model.module.parameters(), lr=1.0)
        loop.bank.save("anchor")
        perturbed(model, 0.02)
        loop.updates, paths, before = 1, loop.rollout().trajectories, weights(loop)
        train(loop, paths, torch.zeros(1, 4), torch.ones(1, 4, dtype=torch.bool))
        return (before - weights(loop)).norm()

    assert pulled("train") > 0
    assert pulled("skip") == 0


def test_best_and_worst_of_a_group():
    generator = torch.Generator().manual_seed(0)
    advantage = torch.randn(50, 7, generator=generator, dtype=torch.float64)
    used = torch.rand(50, 7, generator=generator) > 0.2
    chosen = best_and_worst(advantage, used, 2)
    for row, ok, found in zip(advantage.tolist(), used.tolist(), chosen.tolist(), strict=True):
        there = sorted((a, i) for i, (a, u) in enumerate(zip(row, ok, strict=True)) if u)
        assert {i for i, yes in enumerate(found) if yes} == {i for _, i in [*there[:2], *there[-2:]]}
    assert torch.equal(best_and_worst(advantage, used, None), used)


def test_selected_videos_alone_are_trained():
    """The gradient is that of a run in which the others had failed, with the advantages of the whole group."""
    policy = {"select": 1, "flat_groups": "skip"}
    gradient, rows = trained(policy=policy)
    chosen = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 1]], dtype=torch.bool)
    masked, _ = trained(used=chosen)
    # the flat group has two chosen videos that count in the mean, and no gradient
    scale = 6 / 4
    assert (gradient * scale - masked).norm() < 1e-4 * masked.norm()
    assert sum(rows) == 4 * 5  # four videos at five steps


def test_a_renewed_anchor_is_not_asked_and_the_weights_are_equal_to_the_bit(monkeypatch):
    kl = {"anchor": "moving", "ref_model_sync_steps": 2, "high": 0.5, "low": 0.5}

    def run():
        model = perturbed(GaussianModel())
        asked = []
        model.module.register_forward_pre_hook(lambda _, x: asked.append(torch.is_grad_enabled()))
        loop, _ = make_loop(make_config(kl=kl, policy={"num_iterations": 2}), model=model)
        loop.run(3)
        return weights(loop), asked.count(False)

    spared, fewer = run()
    update = module.update

    def always(model, batches, step, *rest, **named):
        return update(model, batches, replace(step, anchor_places=range(len(batches[0].steps))), *rest, **named)

    monkeypatch.setattr(module, "update", always)
    full, more = run()
    assert torch.equal(spared, full)
    assert fewer < more


def test_the_anchor_is_asked_at_a_share_of_the_steps():
    config = make_config(kl={"share": 0.3})
    counts = [len(evaluated_places(5, config, i)) for i in range(2000)]
    assert set(counts) == {1, 2}
    assert sum(counts) / 2000 == pytest.approx(1.5, abs=0.04)
    alone = [len(evaluated_places(1, config, i)) for i in range(2000)]
    assert sum(alone) / 2000 == pytest.approx(0.3, abs=0.04)
    assert evaluated_places(5, make_config(), 0) == [0, 1, 2, 3, 4]


@pytest.mark.slow
def test_the_share_is_unbiased():
    """The mean of many draws is the gradient of the anchor at every step."""
    model_of = {"anchor": "fixed", "high": 0.5, "low": 0.5}

    def gradient(share, key):
        model = perturbed(GaussianModel())
        kl = model_of | {"share": share}
        policy = {"prompts_per_iteration": 3, "batch_size": 4, "max_grad_norm": 1e9}
        loop, _ = make_loop(make_config(kl=kl, policy=policy), model=model)
        loop.optimizer = torch.optim.SGD(model.module.parameters(), lr=1.0)
        paths, loop.updates, before = loop.rollout().trajectories, 1, weights(loop)
        perturbed(model, 0.02)
        loop.bank.save("anchor")
        perturbed(model, -0.02)
        loop.iteration = key
        train(loop, paths, ADVANTAGE, USED)
        return before - weights(loop)

    whole = gradient(1.0, 0)
    draws = torch.stack([gradient(0.4, key) for key in range(60)])
    error = draws.std(0) / 60**0.5
    assert (draws.mean(0) - whole).norm() < 3 * error.norm()
    assert error.norm() > 0
