"""Successive halving: every candidate runs a little, the best third a little longer, until one has run whole.

Jamieson and Talwalkar (2016). A whole grid of nine costs nine runs; this costs two and a third.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

Scores = dict[str, float]

KEEP = 3  # one candidate in so many goes to the next rung


@dataclass(frozen=True)
class Rung:
    """A level of the search: how many candidates reach it, and how much each has run by its end."""

    candidates: int
    passes: float


def rungs(candidates: int, whole: float, keep: int = KEEP) -> list[Rung]:
    """Return the rungs from all candidates to one, which runs for `whole` passes.

    A rung is `keep` times as long as the one before.
    """
    counts = [candidates]
    while counts[-1] > 1:
        counts.append(math.ceil(counts[-1] / keep))
    return [Rung(count, whole / keep**left) for count, left in zip(counts, reversed(range(len(counts))), strict=True)]


def cost(ladder: Sequence[Rung]) -> float:
    """Return the passes of the whole search. A run that reaches the next rung is continued, not started again."""
    first = ladder[0].candidates * ladder[0].passes
    return first + sum(after.candidates * (after.passes - before.passes) for before, after in pairwise(ladder))


def whole_within(budget: float, candidates: int, keep: int = KEEP) -> float:
    """Return the passes of the last run, if the whole search may take `budget`."""
    return budget / cost(rungs(candidates, 1.0, keep))


def best(scores: Mapping[str, float], count: int) -> list[str]:
    """Return the names of the `count` highest scores, best first; one without a score is never among them."""
    known = [name for name, score in scores.items() if math.isfinite(score)]
    return sorted(known, key=lambda name: -scores[name])[:count]


def tail_mean(rewards: Sequence[float]) -> float:
    """Return the reward that a run has reached: the mean of its last third, of two iterations at least."""
    values = [value for value in rewards[-max(2, len(rewards) // 3) :] if math.isfinite(value)]
    return math.fsum(values) / len(values) if values else math.nan


def search(ladder: Sequence[Rung], names: Sequence[str], run: Callable[[list[str], Rung], Scores]) -> list[Scores]:
    """Search by successive halving, and return the scores of each rung.

    `run` brings the named candidates to the end of a rung, and returns their scores.
    """
    done = [run(list(names), ladder[0])]
    for rung in ladder[1:]:
        done.append(run(best(done[-1], rung.candidates), rung))
    return done
