"""Rungs, their cost, and who climbs."""

import itertools
import math

import pytest

pytest.importorskip("hypothesis")

from hypothesis import given
from hypothesis import strategies as st

from sage_grpo.tune.halving import Rung, best, cost, rungs, search, tail_mean, whole_within


def test_nine_candidates():
    assert rungs(9, 90.0) == [Rung(9, 10.0), Rung(3, 30.0), Rung(1, 90.0)]
    assert cost(rungs(9, 90.0)) == 9 * 10 + 3 * 20 + 1 * 60  # 210 of the 810 of a grid


@given(st.integers(2, 200), st.floats(1, 1e9), st.integers(2, 5))
def test_a_ladder_leads_from_all_to_one(candidates, whole, keep):
    ladder = rungs(candidates, whole, keep)
    assert (ladder[0].candidates, ladder[-1]) == (candidates, Rung(1, whole))
    for before, after in itertools.pairwise(ladder):
        assert after.candidates == math.ceil(before.candidates / keep)
        assert after.passes == pytest.approx(keep * before.passes)
    assert whole <= cost(ladder) < candidates * whole
    assert cost(rungs(candidates, whole_within(whole, candidates, keep), keep)) == pytest.approx(whole)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40, unique=True))
def test_the_best_wins_if_it_is_best_all_along(values):
    scores = {str(i): value for i, value in enumerate(values)}
    done = search(rungs(len(scores), 1.0), list(scores), lambda names, rung: {name: scores[name] for name in names})
    assert list(done[-1]) == [max(scores, key=scores.__getitem__)]


def test_one_without_a_score_does_not_climb():
    assert best({"a": math.nan, "b": -1.0, "c": -math.inf}, 3) == ["b"]


@pytest.mark.parametrize(
    ("rewards", "mean"), [([5.0], 5.0), ([9, 1, 2], 1.5), ([9, 9, 9, 9, 9, 9, 1, 2, 3], 2.0), ([1.0, math.nan], 1.0)]
)
def test_a_run_is_judged_by_its_last_third(rewards, mean):
    assert tail_mean(rewards) == mean


def test_a_run_without_a_reward_has_no_score():
    assert math.isnan(tail_mean([]))
    assert math.isnan(tail_mean([math.nan]))
