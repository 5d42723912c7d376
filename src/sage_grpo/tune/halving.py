"""Successive halving: all candidates run briefly, the best third runs longer, and so on until one run has full length.

Jamieson and Talwalkar (2016). To run each of nine candidates at full length would cost nine full runs. This search
costs two and a third.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

Scores = dict[str, float]

KEEP = 3  # one candidate in so many goes to the next rung


@dataclass(frozen=True)
class Rung:
    """A level of the search: how many candidates take part, and how many forward passes each has run at its end."""

    candidates: int
    passes: float


def rungs(candidates: int, whole: float, keep: int = KEEP) -> list[Rung]:
    """Return the rungs of a search, from all candidates down to a single one, which runs for `whole` forward passes.

    On each rung, one in `keep` candidates of the rung before continues, until it has run `keep` times as long.
    """
    counts = [candidates]
    while counts[-1] > 1:
        counts.append(math.ceil(counts[-1] / keep))
    return [Rung(count, whole / keep**left) for count, left in zip(counts, reversed(range(len(counts))), strict=True)]


def cost(ladder: Sequence[Rung]) -> float:
    """Return the forward passes of the whole search, over all runs.

    A run that reaches the next rung is continued, not started again.
    """
    first = ladder[0].candidates * ladder[0].passes
    return first + sum(after.candidates * (after.passes - before.passes) for before, after in pairwise(ladder))


def whole_within(budget: float, candidates: int, keep: int = KEEP) -> float:
    """Return how many forward passes the last run may take if the whole search may take `budget` passes."""
    return budget / cost(rungs(candidates, 1.0, keep))


def best(scores: Mapping[str, float], count: int) -> list[str]:
    """Return the names of the `count` highest scores, best first. Names without a finite score are left out."""
    known = [name for name, score in scores.items() if math.isfinite(score)]
    return sorted(known, key=lambda name: -scores[name])[:count]


def tail_mean(rewards: Sequence[float]) -> float:
    """Return the reward that a run has reached, from one mean reward per iteration.

    It is the mean over the last third of the iterations, and over at least two. It is NaN if none of these is finite.
    """
    values = [value for value in rewards[-max(2, len(rewards) // 3) :] if math.isfinite(value)]
    return math.fsum(values) / len(values) if values else math.nan


def search(ladder: Sequence[Rung], names: Sequence[str], run: Callable[[list[str], Rung], Scores]) -> list[Scores]:
    """Search by successive halving, and return for each rung the scores of its candidates by name.

    `run(names, rung)` must train the named candidates to the end of a rung, and return their scores.
    """
    done = [run(list(names), ladder[0])]
    for rung in ladder[1:]:
        done.append(run(best(done[-1], rung.candidates), rung))
    return done
