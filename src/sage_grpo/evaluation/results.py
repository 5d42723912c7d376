"""From scores to results: means, paired differences and win rates with intervals over prompts, in all and by tag.

Prompts are what an evaluation draws from the world, so they are what the bootstrap draws again; the videos of a prompt
stay together. Two sources are compared video by video, each pair of one prompt and one seed.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sage_grpo.evaluation.prompts import Task
from sage_grpo.evaluation.scores import OVERALL, Score
from sage_grpo.statistics import Effect, bootstrap, discoveries, p_of_zero

Values = npt.NDArray[np.float64]  # a row a prompt, a column a seed; nan where there is no score
FEWEST = 5  # prompts below which an interval would say more than it knows


def as_array(rows: Sequence[Sequence[float | None]]) -> Values:
    return np.array([[np.nan if x is None else x for x in row] for row in rows], dtype=np.float64)


def with_overall(values: Mapping[str, Values], scores: Sequence[Score]) -> dict[str, Values]:
    """The weighted sum of the recipe; a video that lacks a part of it has none."""
    parts = [score.weight * values[score.name] for score in scores if score.weight]
    return {OVERALL: np.sum(parts, axis=0), **values} if len(parts) > 1 else dict(values)


def by_prompt(values: Values) -> list[float]:
    """Means over the videos of each prompt, of prompts that have any."""
    kept = values[~np.isnan(values).all(axis=1)]
    return [float(x) for x in np.nanmean(kept, axis=1)] if len(kept) else []


def wins(treated: Values, control: Values, lower: bool = False) -> Values:
    """1 where the video is better than its pair, 0 where it is worse, a half where both score the same."""
    difference = (control - treated) if lower else (treated - control)
    return np.where(np.isnan(difference), np.nan, (np.sign(difference) + 1) / 2)


def interval(values: Sequence[float]) -> dict[str, Any]:
    """Mean and 95 % interval, without one where the prompts are too few."""
    found: dict[str, Any] = {
        "mean": float(np.mean(values)) if values else None,
        "low": None,
        "high": None,
        "prompts": len(values),
    }
    if len(values) >= FEWEST:
        effect: Effect = bootstrap(values)
        found |= {"low": effect.low, "high": effect.high}
    return found


def compare(treated: Values, control: Values, lower: bool) -> dict[str, Any]:
    difference = by_prompt(treated - control)
    found = interval(difference) | {"videos": int((~np.isnan(treated - control)).sum())}
    found["p"] = p_of_zero(difference) if len(difference) >= FEWEST else None
    return found | {"wins": interval(by_prompt(wins(treated, control, lower)))}


def flag(rows: Sequence[dict[str, Any]]) -> None:
    """Mark what stands: alone, by its interval, and among all rows, at a false discovery rate of 5 %."""
    tested = [row for row in rows if row["p"] is not None]
    for row in rows:
        row["excludes_zero"] = row["low"] is not None and (row["low"] > 0 or row["high"] < 0)
        row["stands"] = False
    for row, good in zip(tested, discoveries([row["p"] for row in tested]), strict=True):
        row["stands"] = good


def compute(
    values: Mapping[str, Mapping[str, Values]], scores: Sequence[Score], tasks: Sequence[Task]
) -> dict[str, Any]:
    """All figures; `values` is by source, the reference first, and by score."""
    names = list(values)
    means = {
        name: {s.name: interval(by_prompt(values[name][s.name])) | _counts(values[name][s.name]) for s in scores}
        for name in names
    }
    pairs = [
        {"source": a, "against": b, "score": s.name, **compare(values[a][s.name], values[b][s.name], s.lower)}
        for b, a in itertools.combinations(names, 2)
        for s in scores
    ]
    flag(pairs)
    tags = [
        {
            "tag": tag,
            "value": value,
            "source": name,
            "score": s.name,
            **compare(values[name][s.name][rows], values[names[0]][s.name][rows], s.lower),
        }
        for (tag, value), rows in tag_rows(tasks).items()
        for name in names[1:]
        for s in scores
    ]
    flag(tags)
    return {"means": means, "comparisons": pairs, "tags": tags}


def _counts(values: Values) -> dict[str, int]:
    scored = int((~np.isnan(values)).sum())
    return {"videos": scored, "masked": values.size - scored}


def tag_rows(tasks: Sequence[Task]) -> dict[tuple[str, str], list[int]]:
    """Places of the prompts with each value of each tag, in the order in which they first come."""
    found: dict[tuple[str, str], list[int]] = {}
    for i, task in enumerate(tasks):
        for tag, value in task.tags.items():
            found.setdefault((tag, value), []).append(i)
    order = {tag: i for i, tag in enumerate(dict.fromkeys(tag for tag, _ in found))}
    return dict(sorted(found.items(), key=lambda item: order[item[0][0]]))
