"""The plan of a study, fixed before anyone rates: written once, and named by its hash in every rater's file."""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sage_grpo.config import ConfigError

NAME, VIDEOS, ANSWERS = "plan.json", "videos", "answers"


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Dimension(Part):
    """A question that raters answer about every pair of videos."""

    key: str = Field(pattern=r"^[a-z][a-z0-9_-]{0,30}$")
    name: str
    question: str


class Clip(Part):
    source: str
    video: str = Field(pattern=r"^[0-9a-f]{20}\.mp4$")  # in the folder of videos, named by its content


class Comparison(Part):
    """Two videos of one prompt.

    In an attention check, the first is the original and the second its degraded copy.
    """

    id: str
    prompt_id: str
    prompt: str
    first: Clip
    second: Clip
    check: str = ""  # how the copy is degraded


class StudyPlan(Part):
    version: int = 1
    title: str
    seed: int
    made: str
    dimensions: tuple[Dimension, ...] = Field(min_length=1)
    sources: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...]  # win rates are of the first
    comparisons: tuple[Comparison, ...] = Field(min_length=1)
    checks: tuple[Comparison, ...]
    per_rater: int = Field(ge=1)  # comparisons, besides checks and the repeated pair
    max_failed: float = Field(ge=0, le=1)  # share of checks; who fails more is left out
    rule: str
    videos: Mapping[str, str]  # file: sha256
    contact: str = ""  # who runs the study, for raters
    access: str  # part of the address where others than this computer are let in
    notes: tuple[str, ...] = ()

    @property
    def by_id(self) -> dict[str, Comparison]:
        return {comparison.id: comparison for comparison in (*self.comparisons, *self.checks)}


@dataclass(frozen=True)
class Showing:
    """A comparison as it is shown to one rater.

    If `swapped`, the first video is on the right. `repeat` marks a comparison that the rater has already seen.
    """

    comparison: str
    swapped: bool
    repeat: bool = False


def read_plan(folder: Path) -> tuple[StudyPlan, str]:
    """Return the plan of a study's folder, and the hash of its file, which every rater's file must name."""
    path = folder / NAME
    if not path.is_file():
        raise ConfigError(f"{folder} is no study: it has no {NAME}; make one with `sage-grpo study make`")
    data = path.read_bytes()
    try:
        return StudyPlan.model_validate_json(data), sha256(data).hexdigest()
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise ConfigError(f"{path} is not a plan of this version: {where}: {error.errors()[0]['msg']}") from None


def check_videos(folder: Path, plan: StudyPlan) -> None:
    """Refuse a study if one of its videos is missing, or is no longer the one that was planned."""
    for name, digest in plan.videos.items():
        path = folder / VIDEOS / name
        if not path.is_file():
            raise ConfigError(f"{path} is missing; make the study again")
        if sha256(path.read_bytes()).hexdigest() != digest:
            raise ConfigError(f"{path} is not the video that was planned; make the study again")


def dump_plan(plan: StudyPlan) -> bytes:
    return (json.dumps(plan.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n").encode()


def assign(plan: StudyPlan, number: int, expected: Counter[str], assigned: Counter[str]) -> list[Showing]:
    """Return what rater `number` is shown, in order: comparisons, the attention checks, and one comparison repeated.

    Args:
        plan: The plan of the study.
        number: The number of the rater, from 0.
        expected: How many answers each comparison has or may expect. Comparisons with the fewest are chosen first, so
            that all fill up alike.
        assigned: How many raters were given each comparison. From one rater to the next, its sides are exchanged, from
            a random start.
    """
    random = np.random.default_rng([plan.seed, 2, number])
    chosen = _fewest_answers(plan, expected, random)
    showings = [Showing(comparison, _swapped(plan, comparison, assigned[comparison])) for comparison in chosen]
    showings = [showings[i] for i in random.permutation(len(showings))]
    repeated = showings[int(random.integers(max(1, len(showings) // 2)))] if len(showings) > 1 else None
    order = random.permutation(len(plan.checks))
    for check, index in zip(plan.checks, order, strict=True):
        at = int(random.integers(1, len(showings) + 1))  # not the first
        showings.insert(at, Showing(check.id, bool((index + number) % 2)))
    if repeated:
        at = int(random.integers(-(-2 * len(showings) // 3), len(showings) + 1))  # in the last third
        showings.insert(at, Showing(repeated.comparison, not repeated.swapped, repeat=True))
    return showings


def _fewest_answers(plan: StudyPlan, expected: Counter[str], random: np.random.Generator) -> list[str]:
    rank: dict[str, int] = {}
    ranked: Counter[tuple[str, str]] = Counter()
    for i in random.permutation(len(plan.comparisons)):
        comparison = plan.comparisons[i]
        pair = (comparison.first.source, comparison.second.source)
        rank[comparison.id] = ranked[pair]  # round the pairs of sources, so that a short list has all of them
        ranked[pair] += 1
    return sorted(rank, key=lambda key: (expected[key], rank[key]))[: plan.per_rater]


def _swapped(plan: StudyPlan, comparison: str, before: int) -> bool:
    """Return whether the sides of a comparison are swapped for a rater, after `before` other raters were given it.

    Half of the comparisons of two sources are swapped for one rater, the other half for the next. Then the halves are
    drawn again.
    """
    random = np.random.default_rng([plan.seed, 1, before // 2])
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for planned in plan.comparisons:
        groups[planned.first.source, planned.second.source].append(planned.id)
    for members in groups.values():
        extra = int(random.integers(2))
        for index, i in enumerate(random.permutation(len(members))):
            if members[i] == comparison:
                return bool((index + extra + before) % 2)
    raise KeyError(comparison)
