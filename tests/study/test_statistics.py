"""Against closed forms, published examples, independent likelihoods and planted truths."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize

from sage_grpo.evaluation.study.statistics import AnswerCounts, bradley_terry, fit, half_width, krippendorff, win_rates


def table_of(outcomes, raters, prompts, pairs=1):
    return AnswerCounts.of(outcomes, (raters, prompts, pairs))


def test_two_sources_differ_by_the_logit_of_their_win_rate():
    rows = [(r, p, 0, 1.0) for r in range(3) for p in range(4)] + [(0, p, 0, 0.5) for p in range(4)]
    rows += [(1, 0, 0, 0.0)]
    scores = bradley_terry(table_of(rows, 3, 4), [(0, 1)], 2, resamples=50)
    rate = (12 + 2) / 17
    assert scores.scores[0].value - scores.scores[1].value == pytest.approx(math.log(rate / (1 - rate)), abs=1e-9)
    assert not scores.separated


def test_scores_are_the_optimum_of_a_likelihood_written_otherwise():
    random = np.random.default_rng(3)
    pairs = [(0, 1), (0, 2), (3, 1), (2, 3)]
    wins = np.zeros((1, 4, 4))
    for i, j in pairs:
        wins[0, i, j], wins[0, j, i] = random.integers(1, 30, 2) + random.choice([0, 0.5], 2)

    def loss(rest):
        power = np.exp([0.0, *rest])
        return -sum(wins[0, i, j] * np.log(power[i] / (power[i] + power[j])) for i in range(4) for j in range(4))

    best = np.array(
        [
            0.0,
            *minimize(
                loss, np.zeros(3), method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-13, "maxiter": 20000}
            ).x,
        ]
    )
    (scores,), (separated,) = fit(wins, pairs)
    assert not separated
    assert scores == pytest.approx(best - best.mean(), abs=1e-5)


def test_separation_is_told_and_finite():
    rows = [(r, p, k, 1.0) for r in range(3) for p in range(4) for k in range(2)]
    scores = bradley_terry(table_of(rows, 3, 4, 2), [(0, 1), (0, 2)], 3, resamples=50)
    assert scores.separated
    assert scores.separated_resamples == 1
    gap = scores.scores[0].value - scores.scores[1].value
    assert gap == pytest.approx(math.log(12.5 / 0.5))  # half a win each way
    ties = bradley_terry(table_of([(0, 0, 0, 0.5), (0, 0, 1, 0.5)], 1, 1, 2), [(0, 1), (0, 2)], 3, resamples=5)
    assert [score.value for score in ties.scores] == pytest.approx([0, 0, 0])
    assert not ties.separated


def test_extreme_records_converge():
    wins = np.zeros((2, 3, 3))
    wins[:, 0, 1], wins[:, 1, 0], wins[:, 1, 2], wins[:, 2, 1] = 1e6, 0.5, 1e6, 0.5
    scores, _ = fit(wins, [(0, 1), (1, 2)])
    assert scores[0] == pytest.approx(np.array([1, 0, -1]) * math.log(2e6), abs=1e-6)


def test_alpha_of_krippendorffs_own_example():
    """Computing Krippendorff's Alpha-Reliability (2011), section C: four observers, missing data, nominal: 0.743."""
    table = ["1 2 3 3 2 1 4 1 2 . . .", "1 2 3 3 2 2 4 1 2 5 . 3", ". 3 3 3 2 3 4 2 2 5 1 .", "1 2 3 3 2 4 4 1 2 5 1 ."]
    columns = list(zip(*(row.split() for row in table), strict=True))
    assert krippendorff([[v for v in column if v != "."] for column in columns]) == pytest.approx(0.743, abs=5e-4)


def test_alpha_at_its_ends():
    assert krippendorff([["a", "a"], ["b", "b"]]) == 1
    assert krippendorff([["a", "a"], ["a", "a"]]) is None
    assert krippendorff([["a"], ["b"]]) is None
    random = np.random.default_rng(0)
    assert abs(krippendorff([list(random.choice(["a", "b", "c"], 5)) for _ in range(2000)])) < 0.03


def test_win_rates_by_hand():
    rows = [(0, 0, 0, 1.0), (0, 1, 0, 0.5), (1, 0, 0, 0.0), (1, 1, 0, 1.0), (1, 1, 1, 1.0)]
    first, second, third = win_rates(table_of(rows, 2, 2, 3))
    assert first.value == 2.5 / 4
    assert second.value == 1
    assert third is None
    assert second.low < 0.5  # one answer is no certainty


@pytest.mark.parametrize(("worth", "low", "high"), [(1.0, 0.2065, 1.0), (0.0, 0.0, 0.7935), (0.5, 0.1033, 0.8967)])
def test_answers_that_all_agree_have_an_interval(worth, low, high):
    """Wilson of one cluster in one: from 1 / (1 + 1.96²) = 0.2065 on."""
    (rate,) = win_rates(table_of([(0, p, 0, worth) for p in range(9)], 1, 9))
    assert (rate.value, rate.low, rate.high) == pytest.approx((worth, low, high), abs=1e-4)


def simulated(random, raters, prompts, rate, by_rater, by_prompt):
    """Wins whose variance is shared as told: with its probability an answer is the rater's, or the prompt's, own."""
    own = random.random((raters, prompts)) < rate
    of_rater, of_prompt = random.random(raters) < rate, random.random(prompts) < rate
    kind = random.random((raters, prompts))
    a, b = math.sqrt(by_rater), math.sqrt(by_prompt)  # two answers of one rater are both the rater's with share a²
    won = np.where(kind < a, of_rater[:, None], np.where(kind < a + b, of_prompt[None], own)).astype(float)
    return AnswerCounts(won[..., None], np.ones((raters, prompts, 1)))


@pytest.mark.parametrize(("raters", "prompts"), [(29, 32), (8, 16)])
def test_intervals_cover_the_truth(raters, prompts):
    """A naive interval, which takes answers as independent, fails at this: see the last line."""
    random, rate, runs = np.random.default_rng(7), 0.6, 200
    hits = naive = 0
    widths, estimates = [], []
    for _ in range(runs):
        table = simulated(random, raters, prompts, rate, 0.05, 0.15)
        (estimate,) = win_rates(table, resamples=300)
        value = estimate.value
        hits += estimate.low <= rate <= estimate.high
        widths.append((estimate.high - estimate.low) / 2)
        estimates.append(value)
        naive += abs(value - rate) <= 1.96 * math.sqrt(value * (1 - value) / (raters * prompts))
    print(
        f"{raters} × {prompts}: {hits / runs:.3f} covered, naive {naive / runs:.3f}, half width {np.mean(widths):.3f}"
    )
    assert hits / runs >= 0.9
    assert naive / runs < 0.75
    promised = half_width(raters, prompts, rate, 0.05, 0.15, ties=0)
    assert np.mean(widths) == pytest.approx(promised, rel=0.2)
    assert 1.96 * np.std(estimates) <= promised * 1.1


def test_planted_strengths_are_found():
    random, truth, runs = np.random.default_rng(11), np.array([0.8, 0.1, -0.3, -0.6]), 60
    pairs = [(i, j) for i in range(4) for j in range(i)]
    hits = np.zeros(4)
    means = np.zeros(4)
    for _ in range(runs):
        rows = [
            (r, p, k, float(random.random() < 1 / (1 + math.exp(truth[j] - truth[i]))))
            for r in range(12)
            for p in range(10)
            for k, (i, j) in enumerate(pairs)
        ]
        scores = bradley_terry(table_of(rows, 12, 10, 6), pairs, 4, resamples=200).scores
        hits += [score.low <= t <= score.high for score, t in zip(scores, truth, strict=True)]
        means += [score.value / runs for score in scores]
    print("coverage", hits / runs, "means", means)
    assert means == pytest.approx(truth, abs=0.05)
    assert (hits / runs).min() >= 0.9  # the two-way bootstrap is wide where there are no clusters


def test_the_same_answers_give_the_same_interval():
    table = simulated(np.random.default_rng(0), 5, 8, 0.6, 0.05, 0.15)
    assert win_rates(table) == win_rates(table)
    assert win_rates(table) != win_rates(table, seed=1)


def test_the_table_of_the_documentation():
    page = (Path(__file__).parents[2] / "docs" / "study.md").read_text()
    lines = page[page.index("| raters | 8 prompts") :].split("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    prompts = [int(cell.split()[0]) for cell in cells[0][1:]]
    assert len(cells) == 7
    for raters, *widths in cells[2:]:
        assert widths == [f"±{100 * half_width(int(raters), p):.1f}" for p in prompts]
