"""Compute results from scores: means, paired differences and win rates with intervals over prompts, in all and by tag.

The prompts are a sample of all possible prompts, so the bootstrap resamples prompts. The videos of a prompt stay
together. Two sources are compared video by video, in pairs of the same prompt and seed.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from sage_grpo.evaluation.prompts import Task
from sage_grpo.evaluation.scores import OVERALL, Score
from sage_grpo.statistics import bootstrap, discoveries, p_of_zero

Values = npt.NDArray[np.float64]  # a row per prompt, a column per seed; nan where there is no score
FEWEST = 5  # prompts below which an interval would say more than it knows
VERSION = 1  # of results.json


@dataclass(frozen=True)
class Interval:
    """A mean over prompts with its 95 % interval.

    The ends of the interval are None for fewer than five prompts. The mean is None if no prompt has a value.
    """

    mean: float | None
    low: float | None
    high: float | None
    prompts: int

    def to_json(self) -> dict[str, Any]:
        return {"mean": self.mean, "low": self.low, "high": self.high, "prompts": self.prompts}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        return cls(row["mean"], row["low"], row["high"], row["prompts"])


@dataclass(frozen=True)
class Mean(Interval):
    """The mean of one score of one source, with the numbers of videos that have the score and that lack it."""

    videos: int
    masked: int

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"videos": self.videos, "masked": self.masked}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        return cls(row["mean"], row["low"], row["high"], row["prompts"], row["videos"], row["masked"])


@dataclass(frozen=True)
class Difference(Interval):
    """One source minus another in one score: the mean over pairs of videos with the same prompt and seed."""

    videos: int
    p: float | None  # that it is 0
    wins: Interval  # share of the pairs in which the source is better
    stands: bool = False  # among all of its kind, at a false discovery rate of 5 %

    @property
    def excludes_zero(self) -> bool:
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {
            "videos": self.videos,
            "p": self.p,
            "wins": self.wins.to_json(),
            "excludes_zero": self.excludes_zero,
            "stands": self.stands,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        wins = Interval.from_json(row["wins"])
        ends = row["mean"], row["low"], row["high"]
        return cls(*ends, row["prompts"], row["videos"], row["p"], wins, row["stands"])


@dataclass(frozen=True)
class Comparison:
    """How much one source of videos differs from another in one score: the mean over all prompts, with an interval.

    Sources are what `sage-grpo eval` compares, such as two checkpoints. The difference is `source` minus `against`.
    """

    source: str
    against: str
    score: str
    difference: Difference

    def to_json(self) -> dict[str, Any]:
        names = {"source": self.source, "against": self.against, "score": self.score}
        return names | self.difference.to_json()

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        return cls(row["source"], row["against"], row["score"], Difference.from_json(row))


@dataclass(frozen=True)
class TagComparison:
    """The difference `source` minus reference in one score, on the prompts whose tag `tag` has the value `value`."""

    tag: str
    value: str
    source: str
    score: str
    difference: Difference

    def to_json(self) -> dict[str, Any]:
        names = {"tag": self.tag, "value": self.value, "source": self.source, "score": self.score}
        return names | self.difference.to_json()

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        return cls(row["tag"], row["value"], row["source"], row["score"], Difference.from_json(row))


@dataclass(frozen=True)
class Figures:
    """All numbers that are computed from the scores: means, comparisons of sources, and comparisons by tag."""

    means: dict[str, dict[str, Mean]]  # by source and score
    comparisons: list[Comparison]  # of every two sources by every score
    tags: list[TagComparison]


@dataclass(frozen=True)
class SourceSummary:
    """A source in results.json: its checkpoint and model, how it was sampled, and a hash of what makes its videos."""

    checkpoint: str
    model: str
    steps: int
    shift: float
    identity: str
    order: int = 1


@dataclass(frozen=True)
class EvaluationResults(Figures):
    """The content of results.json: the numbers of an evaluation, and what was compared."""

    reference: str  # the source that the others are compared with
    sources: dict[str, SourceSummary]
    prompts: int
    seeds: list[int]
    scores: list[Score]
    note: str | None
    masked: dict[str, dict[str, dict[str, int]]]  # by source and score, how often for which reason

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "reference": self.reference,
            "sources": {name: asdict(source) for name, source in self.sources.items()},
            "prompts": self.prompts,
            "seeds": self.seeds,
            "scores": [asdict(score) for score in self.scores],
            "note": self.note,
            "means": {name: {key: mean.to_json() for key, mean in means.items()} for name, means in self.means.items()},
            "comparisons": [comparison.to_json() for comparison in self.comparisons],
            "tags": [comparison.to_json() for comparison in self.tags],
            "masked": self.masked,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        return cls(
            means={
                name: {key: Mean.from_json(mean) for key, mean in means.items()}
                for name, means in content["means"].items()
            },
            comparisons=[Comparison.from_json(row) for row in content["comparisons"]],
            tags=[TagComparison.from_json(row) for row in content["tags"]],
            reference=content["reference"],
            sources={name: SourceSummary(**source) for name, source in content["sources"].items()},
            prompts=content["prompts"],
            seeds=content["seeds"],
            scores=[Score(**score) for score in content["scores"]],
            note=content["note"],
            masked=content["masked"],
        )


def as_array(rows: Sequence[Sequence[float | None]]) -> Values:
    return np.array([[np.nan if x is None else x for x in row] for row in rows], dtype=np.float64)


def with_overall(values: Mapping[str, Values], scores: Sequence[Score]) -> dict[str, Values]:
    """Return the values by score, with the overall score added first if at least two scores have a weight.

    The overall score is the weighted sum. A video that lacks one of the weighted scores has no overall score.
    """
    parts = [score.weight * values[score.name] for score in scores if score.weight]
    return {OVERALL: np.sum(parts, axis=0), **values} if len(parts) > 1 else dict(values)


def by_prompt(values: Values) -> list[float]:
    """Return one value per prompt, the mean score of its videos, from scores (prompts, seeds).

    Prompts without a score are left out.
    """
    scored = values[~np.isnan(values).all(axis=1)]
    return [float(x) for x in np.nanmean(scored, axis=1)] if len(scored) else []


def wins(treated: Values, control: Values, lower: bool = False) -> Values:
    """Return who wins each pair of videos: 1 for `treated`, 0 for `control`, and a half where both score the same.

    All arrays are (prompts, seeds), with nan where a score is missing. With `lower`, the lower score wins.
    """
    difference = (control - treated) if lower else (treated - control)
    return np.where(np.isnan(difference), np.nan, (np.sign(difference) + 1) / 2)


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of `values`, one per prompt, with its 95 % interval if there are at least five prompts."""
    mean = float(np.mean(values)) if values else None
    if len(values) < FEWEST:
        return Interval(mean, None, None, len(values))
    effect = bootstrap(values)
    return Interval(mean, effect.low, effect.high, len(values))


def mean_of(values: Values) -> Mean:
    mean, videos = interval(by_prompt(values)), int((~np.isnan(values)).sum())
    return Mean(mean.mean, mean.low, mean.high, mean.prompts, videos, values.size - videos)


def compare(treated: Values, control: Values, lower: bool) -> Difference:
    """Return the difference `treated` − `control` in one score, both (prompts, seeds), with its p-value and win rate.

    With `lower`, lower scores are better. `stands` is set later, by `flag`, because it depends on all differences.
    """
    differences = by_prompt(treated - control)
    mean = interval(differences)
    return Difference(
        mean.mean,
        mean.low,
        mean.high,
        mean.prompts,
        videos=int((~np.isnan(treated - control)).sum()),
        p=p_of_zero(differences) if len(differences) >= FEWEST else None,
        wins=interval(by_prompt(wins(treated, control, lower))),
    )


def flag(differences: Sequence[Difference]) -> list[Difference]:
    """Return the differences, with `stands` True for those that are significant.

    They are judged together, at a false discovery rate of 5 %.
    """
    stands = iter(discoveries([difference.p for difference in differences if difference.p is not None]))
    return [replace(difference, stands=difference.p is not None and next(stands)) for difference in differences]


def compute(values: Mapping[str, Mapping[str, Values]], scores: Sequence[Score], tasks: Sequence[Task]) -> Figures:
    """Return the means, the differences of every two sources, and the differences to the reference source by tag.

    Args:
        values: Scores (prompts, seeds) by source, the reference first, and by name of the score.
        scores: The scores to compute results for.
        tasks: The prompts in the order of the rows of `values`, with their tags.
    """
    names = list(values)
    means = {name: {s.name: mean_of(values[name][s.name]) for s in scores} for name in names}
    pairs = [(a, b, s) for b, a in itertools.combinations(names, 2) for s in scores]
    of_pairs = flag([compare(values[a][s.name], values[b][s.name], s.lower) for a, b, s in pairs])
    groups = [
        (tag, value, rows, name, s)
        for (tag, value), rows in tag_rows(tasks).items()
        for name in names[1:]
        for s in scores
    ]
    of_groups = flag(
        [compare(values[name][s.name][rows], values[names[0]][s.name][rows], s.lower) for _, _, rows, name, s in groups]
    )
    return Figures(
        means,
        [Comparison(a, b, s.name, difference) for (a, b, s), difference in zip(pairs, of_pairs, strict=True)],
        [
            TagComparison(tag, value, name, s.name, difference)
            for (tag, value, _, name, s), difference in zip(groups, of_groups, strict=True)
        ],
    )


def tag_rows(tasks: Sequence[Task]) -> dict[tuple[str, str], list[int]]:
    """Return the row numbers of the prompts that have each (tag, value).

    Tags are in the order in which they first occur.
    """
    rows: dict[tuple[str, str], list[int]] = {}
    for i, task in enumerate(tasks):
        for tag, value in task.tags.items():
            rows.setdefault((tag, value), []).append(i)
    order = {tag: i for i, tag in enumerate(dict.fromkeys(tag for tag, _ in rows))}
    return dict(sorted(rows.items(), key=lambda item: order[item[0][0]]))
