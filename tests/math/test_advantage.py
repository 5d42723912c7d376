"""A failed reward is a mask: it never reaches the advantages of the others."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_grpo.math.advantage import group_advantages, weighted_reward

groups = st.integers(2, 8).flatmap(
    lambda size: st.lists(
        st.tuples(st.lists(st.floats(-100, 100), min_size=size, max_size=size),
                  st.lists(st.booleans(), min_size=size, max_size=size)),
        min_size=1, max_size=4,
    )
)  # fmt: skip


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
    valid = torch.tensor([[True, True, True], [True, False, True], [True, True, True]])
    reward, ok = weighted_reward(scores, valid, (0.5, 0.5, 1.0))
    assert reward[0] == 5.5
    assert ok.tolist() == [True, False, False]  # a score that is not finite is a failure, whatever it claims
    reward, ok = weighted_reward(scores, valid, (1.0, 0.0, 0.0))  # a score without weight may fail
    assert reward.tolist() == [1.0, 1.0, 1.0]
    assert ok.all()


def test_weights_must_match():
    with pytest.raises(ValueError, match="2 reward weights for 3 scores"):
        weighted_reward(torch.zeros(4, 3), torch.ones(4, 3, dtype=torch.bool), (1.0, 1.0))
