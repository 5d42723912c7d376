"""Statistics of preferences with their uncertainty: win rates, Bradley–Terry scores, agreement.

Answers come in clusters: those of one rater are alike, and those on one prompt are alike. Intervals are from the
pigeonhole bootstrap (Owen, Annals of Applied Statistics 2007). It draws raters and prompts with replacement, and
weights an answer by the draws of its rater times the draws of its prompt. The intervals are somewhat wide rather than
too narrow.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from sage_grpo.statistics import share

Array = npt.NDArray[np.float64]
RESAMPLES = 2000
PSEUDO = 0.5  # of a win each way, where the most likely scores would be infinite
LONGEST_STEP = 2.0  # of Newton's, in units of log strength


@dataclass(frozen=True)
class Interval:
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class AnswerCounts:
    """The answers to one question of a study, summed into arrays (raters, prompts, pairs of sources).

    In `wins`, an answer for the first source of the pair adds 1, and a tie adds a half. `count` has the number of
    answers.
    """

    wins: Array
    count: Array

    @staticmethod
    def of(rows: Sequence[tuple[int, int, int, float]], shape: tuple[int, int, int]) -> "AnswerCounts":
        wins, count = np.zeros(shape), np.zeros(shape)
        for rater, prompt, pair, win in rows:
            wins[rater, prompt, pair] += win
            count[rater, prompt, pair] += 1
        return AnswerCounts(wins, count)

    def resampled(self, seed: int, resamples: int = RESAMPLES) -> tuple[Array, Array]:
        """Return the wins of the first sources and the numbers of answers, both (resamples, pairs)."""
        random = np.random.default_rng(seed)
        raters, prompts = self.wins.shape[:2]
        by_rater = random.multinomial(raters, np.full(raters, 1 / raters), resamples).astype(float)
        by_prompt = random.multinomial(prompts, np.full(prompts, 1 / prompts), resamples).astype(float)

        def total(what: Array) -> Array:
            sums: Array = np.einsum("br,bp,rpk->bk", by_rater, by_prompt, what, optimize=True)
            return sums

        return total(self.wins), total(self.count)


def win_rates(table: AnswerCounts, seed: int = 0, resamples: int = RESAMPLES) -> list[Interval | None]:
    """Return the win rate of each pair's first source with its 95 % interval; None for a pair without answers.

    The rate is (wins + half of ties) / answers.
    """
    wins, count = table.resampled(seed, resamples)
    out: list[Interval | None] = []
    for k in range(table.wins.shape[2]):
        n, won = table.count[..., k].sum(), table.wins[..., k].sum()
        if not n:
            out.append(None)
            continue
        drawn = count[:, k] > 0
        low, high = np.quantile(wins[drawn, k] / count[drawn, k], (0.025, 0.975))
        if np.array_equal(table.wins[..., k] * n, table.count[..., k] * won):  # all alike, and so are all resamples
            clusters = min(int(np.count_nonzero(table.count[..., k].sum(axis))) for axis in (0, 1))
            sure = share([True] * clusters)[1]  # so much of what is not seen is like what is seen; the rest may be any
            low, high = sure * won / n, sure * won / n + 1 - sure
        out.append(Interval(float(won / n), float(low), float(high)))
    return out


@dataclass(frozen=True)
class Scores:
    """The Bradley–Terry scores of the sources: log strengths with mean 0.

    The odds that a source with score a is preferred to one with score b are e^(a−b).
    """

    scores: list[Interval]
    separated: bool  # a group of sources never lost to the rest: PSEUDO wins were added to keep scores finite
    separated_resamples: float  # share of resamples in which they were


def bradley_terry(
    table: AnswerCounts, pairs: Sequence[tuple[int, int]], sources: int, seed: int = 0, resamples: int = RESAMPLES
) -> Scores:
    """Return Bradley–Terry scores, fitted by maximum likelihood, with ties as half a win each way, as in the win rates.

    So in a study of two sources, their scores differ by the logit of their win rate. The intervals come from the
    bootstrap, because the likelihood need not be right about the spread of ties.

    Args:
        table: The answers to one question.
        pairs: The indices of the first and second source of each pair.
        sources: The number of sources.
        seed: Seed of the bootstrap.
        resamples: Number of resamples.
    """
    wins, count = table.resampled(seed, resamples)
    drawn = matrix(wins, count, pairs, sources)
    observed = matrix(table.wins.sum((0, 1))[None], table.count.sum((0, 1))[None], pairs, sources)
    (value,), (separated,) = fit(observed, pairs)
    values, often = fit(drawn, pairs)
    low, high = np.quantile(values, (0.025, 0.975), axis=0)
    scores = [Interval(float(v), float(a), float(b)) for v, a, b in zip(value, low, high, strict=True)]
    return Scores(scores, bool(separated), float(often.mean()))


def matrix(wins: Array, count: Array, pairs: Sequence[tuple[int, int]], sources: int) -> Array:
    """Return how often source i was preferred to j, (batch, sources, sources), from wins and answers (batch, pairs)."""
    out = np.zeros((len(wins), sources, sources))
    for k, (i, j) in enumerate(pairs):
        out[:, i, j] += wins[:, k]
        out[:, j, i] += count[:, k] - wins[:, k]
    return out


def fit(wins: Array, pairs: Sequence[tuple[int, int]]) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Return the log strengths, (batch, sources), that fit wins (batch, sources, sources) best, by Newton's method.

    Also return where Ford's condition for finite strengths fails, (batch,): some sources never lost to the rest. Half a
    win each way is then added to every pair.
    """
    sources = wins.shape[-1]
    reach = (wins > 0) | np.eye(sources, dtype=bool)
    for _ in range(max(1, math.ceil(math.log2(sources)))):
        reach = (reach.astype(int) @ reach.astype(int)) > 0
    separated: npt.NDArray[np.bool_] = np.logical_not(reach.all((1, 2)))
    wins = wins.copy()
    for i, j in pairs:
        wins[separated, i, j] += PSEUDO
        wins[separated, j, i] += PSEUDO
    games, theta = wins + wins.swapaxes(1, 2), np.zeros(wins.shape[:2])
    for _ in range(200):
        p = 1 / (1 + np.exp(theta[:, None, :] - theta[:, :, None]))
        gradient = (wins - games * p).sum(2)
        curved = games * p * (1 - p)
        hessian = np.eye(sources) * curved.sum(2)[..., None] - curved + 1 / sources  # the mean is fixed by the last
        step = np.linalg.solve(hessian, gradient[..., None])[..., 0]
        if np.abs(step).max(initial=0.0) < 1e-8:  # Newton's steps shrink as squares: the next would be lost in rounding
            return theta + step - (theta + step).mean(1, keepdims=True), separated
        theta = theta + step * np.minimum(1, LONGEST_STEP / np.maximum(np.abs(step).max(1, keepdims=True), 1e-12))
    raise ArithmeticError("the scores did not converge")


def krippendorff(units: Sequence[Sequence[str]]) -> float | None:
    """Return Krippendorff's α, the agreement of raters on nominal values: 1 is perfect agreement, 0 is that of chance.

    Each unit has one value from each rater who saw it. Return None if all values of units with two raters or more are
    the same.
    """
    pairable = [unit for unit in units if len(unit) > 1]
    values = [value for unit in pairable for value in unit]
    n, kinds = len(values), sorted(set(values))
    if len(kinds) < 2:
        return None
    counts = np.array([[sum(value == kind for value in unit) for kind in kinds] for unit in pairable], float)
    size, total = counts.sum(1), counts.sum(0)
    observed = float(((size**2 - (counts**2).sum(1)) / (size - 1)).sum()) / n
    expected = float(n**2 - (total**2).sum()) / (n * (n - 1))
    return 1 - observed / expected


def half_width(
    raters: int, prompts: int, rate: float = 0.5, by_rater: float = 0.05, by_prompt: float = 0.15, ties: float = 0.2
) -> float:
    """Return half the width of a win rate's 95 % interval when every rater sees every prompt.

    The interval is by Student's t. Its degrees of freedom are the number of raters or of prompts, whichever is smaller,
    minus one.

    Args:
        raters: Number of raters.
        prompts: Number of prompts.
        rate: The expected win rate, from 0 to 1.
        by_rater: Share of an answer's variance that all answers of a rater have in common, from 0 to 1.
        by_prompt: Share of an answer's variance that all answers on a prompt have in common, from 0 to 1.
        ties: Share of the answers that are ties, from 0 to 1.
    """
    variance = rate * (1 - rate) - ties / 4  # ties stand in the middle
    if variance <= 0:
        raise ValueError(f"with a win rate of {rate:g} at most {4 * rate * (1 - rate):g} of answers can be ties")
    rest = 1 - by_rater - by_prompt
    se = math.sqrt(variance * (by_rater / raters + by_prompt / prompts + rest / (raters * prompts)))
    return float(stats.t.ppf(0.975, max(1, min(raters, prompts) - 1))) * se
