"""Intervals over prompts against closed forms, definitions and simulated truth."""

import math

import numpy as np
import pytest
from scipy import stats

from sage_grpo.core.protocols import Prompt
from sage_grpo.evaluation.prompts import Task
from sage_grpo.evaluation.results import as_array, by_prompt, compare, compute, flag, tag_rows, wins, with_overall
from sage_grpo.evaluation.scores import Score
from sage_grpo.statistics import bootstrap, discoveries, effect, p_of_zero, share, share_by_group


@pytest.mark.slow
def test_a_mean_of_many_has_the_interval_of_the_normal_law():
    values = np.random.default_rng(1).normal(0.3, 2.0, 4000)
    effect = bootstrap(values)
    half = stats.norm.ppf(0.975) * values.std(ddof=1) / 4000**0.5
    assert effect.mean == pytest.approx(values.mean())
    assert effect.low == pytest.approx(values.mean() - half, abs=0.04 * half)
    assert effect.high == pytest.approx(values.mean() + half, abs=0.04 * half)
    assert effect.se == pytest.approx(half / 1.96, rel=0.03)


def test_skew_moves_the_interval_as_theory_says():
    """Of a skewed sample the interval leans to the long tail, and more than the plain percentiles do."""
    values = np.random.default_rng(2).exponential(1.0, 30)
    effect = bootstrap(values)
    percentile = stats.bootstrap((values,), np.mean, method="percentile", random_state=np.random.default_rng(0))
    assert effect.high - effect.mean > effect.mean - effect.low
    assert effect.high > percentile.confidence_interval.high


def coverage(draw, interval, truth, times=150):
    rng = np.random.default_rng(3)
    effects = [interval(draw(rng)) for _ in range(times)]
    return np.mean([effect.low <= truth <= effect.high for effect in effects])


@pytest.mark.slow
def test_coverage_over_prompts_and_the_fault_of_drawing_videos():
    """Four videos of one prompt are alike. Drawing prompts covers the truth; drawing videos as if alone does not."""

    def clustered(rng):
        return rng.normal(0.5, 1.0, (40, 1)) + rng.normal(0.0, 0.3, (40, 4))

    over_prompts = coverage(clustered, lambda x: bootstrap(by_prompt(x), draws=499), 0.5)
    over_videos = coverage(clustered, lambda x: bootstrap(x.flatten(), draws=499), 0.5)
    assert 0.89 <= over_prompts <= 0.99  # 0.95 ± three standard errors of 150 simulations
    assert over_videos < 0.8


def test_the_same_values_have_the_same_interval_and_equal_ones_no_width():
    values = [0.1, 0.5, 0.2, 0.9, 0.4]
    assert bootstrap(values) == bootstrap(values)
    assert (bootstrap([2.0] * 5).low, bootstrap([2.0] * 5).high) == (2.0, 2.0)
    with pytest.raises(ValueError, match="at least two"):
        bootstrap([1.0])


def test_p_and_false_discoveries_against_their_definitions():
    values = np.random.default_rng(4).normal(0.4, 1.0, 25)
    t = values.mean() / (values.std(ddof=1) / 5)
    assert p_of_zero(values) == pytest.approx(2 * stats.t.sf(abs(t), 24))
    assert (p_of_zero([0.0, 0.0]), p_of_zero([1.0, 1.0])) == (1.0, 0.0)
    ps = [0.001, 0.2, 0.013, 0.045, 0.02]
    ordered = sorted(ps)
    largest = max((i for i, p in enumerate(ordered, 1) if p <= 0.05 * i / 5), default=0)
    assert discoveries(ps) == [p <= ordered[largest - 1] for p in ps] == [True, False, True, False, True]
    assert discoveries([]) == []


def test_win_rates_count_ties_half_and_heed_the_direction():
    after, before = as_array([[2.0, 1.0], [1.0, None], [0.0, 3.0]]), as_array([[1.0, 1.0], [2.0, 1.0], [None, 1.0]])
    won = wins(after, before)
    assert np.array_equal(won, [[1, 0.5], [0, np.nan], [np.nan, 1]], equal_nan=True)
    assert by_prompt(won) == [0.75, 0.0, 1.0]
    assert np.array_equal(wins(after, before, lower=True), 1 - won, equal_nan=True)


def test_a_masked_video_takes_its_pair_with_it():
    """The reference's value of a pair without its other half would shift the difference."""
    before = as_array([[0.0, 100.0]] * 6)
    after = as_array([[1.0, None]] * 5 + [[None, None]])
    difference = compare(after, before, lower=False)
    assert (difference.mean, difference.low, difference.high) == (1.0, 1.0, 1.0)
    assert (difference.prompts, difference.videos, difference.p) == (5, 5, 0.0)
    assert difference.wins.mean == 1.0


def test_too_few_prompts_have_no_interval():
    (difference,) = flag([compare(as_array([[1.0]] * 4), as_array([[0.5]] * 4), lower=False)])
    assert (difference.mean, difference.low, difference.p) == (0.5, None, None)
    assert not difference.excludes_zero
    assert not difference.stands


def test_each_difference_gets_its_own_flag():
    """One without a p between two that have one shifts neither."""
    clear, few, none = ([[1.0]] * 9, [[1.0]] * 3, [[0.0]] * 9)
    rows = [compare(as_array(a), as_array([[0.0]] * len(a)), lower=False) for a in (none, few, clear)]
    assert [(row.p, row.stands) for row in flag(rows)] == [(1.0, False), (None, False), (0.0, True)]


def test_overall_is_the_weighted_sum_and_missing_where_a_part_is():
    scores = [Score("a", "x", True, False, 0.5), Score("b", "x", True, False, -2.0), Score("c", "y", False, False)]
    values = with_overall({"a": as_array([[1.0, 2.0]]), "b": as_array([[3.0, None]]), "c": as_array([[9, 9]])}, scores)
    assert np.array_equal(values["Overall"], [[-5.5, np.nan]], equal_nan=True)


def test_results_of_a_known_effect():
    """Every video of `new` is better by 1 for one tag and equal for the other."""
    tasks = [Task(str(i), Prompt(f"p{i}"), {"kind": "odd" if i % 2 else "even"}) for i in range(20)]
    base = np.random.default_rng(5).normal(size=(20, 3))
    new = base + np.array([[float(i % 2)] for i in range(20)])
    figures = compute({"base": {"s": base}, "new": {"s": new}}, [Score("s", "x", False, False)], tasks)
    (pair,) = figures.comparisons
    assert (pair.source, pair.against, pair.difference.mean) == ("new", "base", pytest.approx(0.5))
    assert pair.difference.wins.mean == pytest.approx(0.75)
    assert pair.difference.low < 0.5 < pair.difference.high
    by_value = {row.value: row.difference for row in figures.tags}
    odd, even = by_value["odd"], by_value["even"]
    assert odd.mean == pytest.approx(1.0)
    assert odd.stands
    assert odd.excludes_zero
    assert (even.mean, even.stands, even.prompts) == (0.0, False, 10)
    assert figures.means["base"]["s"].mean == pytest.approx(base.mean())


def test_tags_keep_their_order():
    tasks = [Task("0", Prompt("a"), {"x": "1", "y": "1"}), Task("1", Prompt("b"), {"x": "2", "y": "1"})]
    assert list(tag_rows(tasks).items()) == [(("x", "1"), [0]), (("x", "2"), [1]), (("y", "1"), [0, 1])]


@pytest.mark.parametrize(("values", "errors"), [([1.0, 3.0], 2.0), ([2.0, 2.0], math.inf), ([0.0, 0.0], 0.0)])
def test_a_mean_in_standard_errors(values, errors):
    assert effect(values).standard_errors == pytest.approx(errors)


@pytest.mark.parametrize(("mean", "alike"), [(0.5, 1.4), (0.9, 6.0), (0.97, 20.0)])
def test_intervals_over_groups_cover_as_often_as_they_say(mean, alike):
    """48 prompts with five videos each, whose shares are drawn from many; intervals that count videos cover less."""
    rng, over_groups, over_values = np.random.default_rng(0), 0, 0
    for _ in range(400):
        rates = rng.beta(mean * alike, (1 - mean) * alike, 48)
        hits = (rng.random((48, 5)) < rates[:, None]).flatten().tolist()
        _, low, high = share_by_group(hits, [i // 5 for i in range(240)])
        over_groups += low <= mean <= high
        _, low, high = share(hits)
        over_values += low <= mean <= high
    assert 0.92 <= over_groups / 400 <= 0.98
    assert over_values < over_groups


def test_a_group_for_each_value_gives_wilsons_interval():
    hits = [True] * 59 + [False]
    assert share_by_group(hits, range(60)) == pytest.approx(share(hits))


@pytest.mark.parametrize("pattern", [[True], [False], [True, True, False, True, False]])
def test_groups_of_one_share_count_once_each_and_hold_their_mean(pattern):
    hits = pattern * 48
    mean, low, high = share_by_group(hits, [i // len(pattern) for i in range(len(hits))])
    assert low - 1e-9 <= mean == sum(hits) / len(hits) <= high + 1e-9
    assert 0.05 < high - low < 0.3
