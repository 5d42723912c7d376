"""A failed reward is a mask: it never reaches the advantages of the others."""

import pytest

pytest.importorskip("hypothesis")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_grpo.math.advantage import dimension_advantages, group_advantages, weighted_reward

groups = st.integers(2, 8).flatmap(
    lambda size: st.lists(
        st.tuples(
            st.lists(st.floats(-100, 100), min_size=size, max_size=size),
            st.lists(st.booleans(), min_size=size, max_size=size),
        ),
        min_size=1,
        max_size=4,
    )
)


def independent(rewards, valid):
    """The definition, one group at a time with the statistics module's arithmetic."""
    import statistics

    kept = [r for r, ok in zip(rewards, valid, strict=True) if ok]
    if len(kept) < 2:
        return [0.0] * len(rewards)
    mean, std = statistics.fmean(kept), statistics.pstdev(kept)
    return [max(-5.0, min(5.0, (r - mean) / (std + 1e-4))) if ok else 0.0 for r, ok in zip(rewards, valid, strict=True)]


@settings(max_examples=200, deadline=None)
@given(groups, st.sampled_from([float("nan"), float("inf"), -float("inf"), 1e30, 0.0]))
def test_equals_the_definition_and_ignores_failures(data, garbage):
    reward = torch.tensor([r for r, _ in data], dtype=torch.float64)
    valid = torch.tensor([ok for _, ok in data])
    poisoned = torch.where(valid, reward, torch.tensor(garbage, dtype=torch.float64))
    advantage, used = group_advantages(poisoned, valid)
    truth = torch.tensor([independent(r, ok) for r, ok in data], dtype=torch.float64)
    torch.testing.assert_close(advantage, truth, rtol=1e-6, atol=1e-6)
    assert (advantage[~used] == 0).all()
    assert (used == (valid & (valid.sum(1, keepdim=True) >= 2))).all()


@pytest.mark.parametrize("value", [0.1, -1e6, 3.3333333])
def test_equal_rewards_give_no_signal(value):
    advantage, used = group_advantages(torch.full((2, 7), value), torch.ones(2, 7, dtype=torch.bool))
    assert advantage.abs().max() < 1e-5
    assert used.all()


def test_advantages_are_limited():
    reward = torch.zeros(1, 64)
    reward[0, 0] = 1e9
    advantage, _ = group_advantages(reward, torch.ones(1, 64, dtype=torch.bool))
    assert advantage.max() == 5


def test_weights_combine_scores():
    scores = torch.tensor([[1.0, 2.0, 4.0], [1.0, float("nan"), 4.0], [1.0, 2.0, float("inf")]])
    valid = torch.tensor([[True, True, True], [True, False, True], [True, True, False]])
    reward, ok = weighted_reward(scores, valid, (0.5, 0.5, 1.0))
    assert reward[0] == 5.5
    assert ok.tolist() == [True, False, False]
    reward, ok = weighted_reward(scores, valid, (1.0, 0.0, 0.0))  # a score without weight may fail
    assert reward.tolist() == [1.0, 1.0, 1.0]
    assert ok.all()


def test_weights_must_match():
    with pytest.raises(ValueError, match="2 reward weights for 3 scores"):
        weighted_reward(torch.zeros(4, 3), torch.ones(4, 3, dtype=torch.bool), (1.0, 1.0))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(*[st.floats(-50, 50)] * 3), min_size=8, max_size=8),
    st.lists(st.tuples(*[st.booleans()] * 3), min_size=8, max_size=8),
    st.tuples(*[st.sampled_from([0.0, 0.5, 1.0])] * 3),
)
def test_advantages_of_each_score_equal_the_definition(scores, valid, weights):
    used = [w for w in weights if w]
    columns, truth = list(zip(*scores, strict=True)), []
    for start in (0, 4):
        rows = range(start, start + 4)
        ok = [all(valid[i][r] for r in range(3) if weights[r]) for i in rows]
        each = [independent([columns[r][i] for i in rows], ok) for r in range(3)]
        truth.append(
            [sum(w * e[i] for w, e in zip(weights, each, strict=True)) / max(sum(used), 1e-9) for i in range(4)]
        )
    tensor = torch.tensor(scores, dtype=torch.float64)
    mask = torch.tensor(valid)
    found, _ = dimension_advantages(torch.where(mask, tensor, torch.nan), mask, weights, 4)
    torch.testing.assert_close(found, torch.tensor(truth, dtype=torch.float64), rtol=1e-6, atol=1e-6)


def test_no_score_drowns_another():
    """A score a thousand times as large counts no more, unlike in a sum of rewards."""
    generator = torch.Generator().manual_seed(0)
    scores, all_valid = torch.randn(16, 2, generator=generator).double(), torch.ones(16, 2, dtype=torch.bool)
    larger = scores * torch.tensor([1.0, 1000.0])
    one, _ = dimension_advantages(scores, all_valid, None, 4)
    other, _ = dimension_advantages(larger, all_valid, None, 4)
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)  # but for ε
    summed, _ = group_advantages(weighted_reward(larger, all_valid)[0].view(-1, 4), torch.ones(4, 4, dtype=torch.bool))
    second, _ = group_advantages(scores[:, 1].view(-1, 4), torch.ones(4, 4, dtype=torch.bool))
    torch.testing.assert_close(summed, second, rtol=1e-2, atol=1e-2)
