"""Compute the results of a study: win rates, scores, agreement of raters, and attention checks.

Results are computed twice: without raters who are left out for their attention checks, and with them.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from sage_grpo.config import ConfigError
from sage_grpo.evaluation.study.plan import ANSWERS, StudyPlan, read_plan
from sage_grpo.evaluation.study.statistics import (
    RESAMPLES,
    AnswerCounts,
    Interval,
    bradley_terry,
    krippendorff,
    win_rates,
)
from sage_grpo.evaluation.study.store import Rater, read_rater
from sage_grpo.statistics import share

FIRST, TIE, SECOND = "first", "tie", "second"
WORTH = {FIRST: 1.0, TIE: 0.5, SECOND: 0.0}
VERSION = 1  # of results.json
SEED = 0  # of the bootstrap: the same answers give the same intervals
METHOD = (
    "Win rate: (wins + half of ties) / answers. Intervals: 95 %, percentiles of a two-way (pigeonhole) bootstrap over "
    f"raters and prompts, {RESAMPLES} resamples, seed {SEED}; where all answers agree, by Wilson on the smaller of "
    "both numbers. Scores: Bradley–Terry by maximum likelihood, ties as half a win each way, log strengths, "
    "mean 0. Agreement: Krippendorff's α, nominal."
)


@dataclass(frozen=True)
class RaterCheck:
    """How a rater did on the attention checks, and why the rater is left out of the results, if so."""

    rater: str
    answered: int
    finished: bool
    checks: int
    failed: int
    left_out: str  # why, or nothing


@dataclass(frozen=True)
class PairResult:
    """The answers on one pair of sources in one dimension.

    `rate` is the win rate of the first source; None without answers.
    """

    first: str
    second: str
    wins: int
    ties: int
    losses: int
    rate: Interval | None


@dataclass(frozen=True)
class DimensionResult:
    name: str
    pairs: list[PairResult]
    ties: float | None  # share of the answers
    alpha: float | None  # Krippendorff's
    scores: dict[str, Interval]  # Bradley–Terry, by source
    separated: bool
    separated_resamples: float


@dataclass(frozen=True)
class Repeats:
    """The verdicts on repeated pairs: how many were the same as at the first showing, and how many there are in all."""

    same: int
    of: int


@dataclass(frozen=True)
class GroupResult:
    """The results of a group of raters: all of them, or those who passed the attention checks."""

    raters: int
    prompts: int
    comparisons: int
    median_seconds: float
    left_share: tuple[float, float, float] | None  # of the sides that were chosen, with its interval
    repeats: Repeats
    dimensions: dict[str, DimensionResult]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"left_share": list(self.left_share) if self.left_share else None}


@dataclass(frozen=True)
class RaterCounts:
    joined: int
    answered: int
    kept: int
    left_out: int
    finished: int


@dataclass(frozen=True)
class StudyResults:
    """The content of the results.json of a study."""

    title: str
    plan: str  # its hash
    rule: str
    method: str
    notes: list[str]
    raters: RaterCounts
    checks: list[RaterCheck]
    kept: GroupResult | None  # of raters who passed the checks
    all: GroupResult

    @property
    def main(self) -> GroupResult:
        """Return the results of the raters who passed the attention checks, or of all raters if nobody passed."""
        return self.kept or self.all

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "title": self.title,
            "plan": self.plan,
            "rule": self.rule,
            "method": self.method,
            "notes": self.notes,
            "raters": asdict(self.raters),
            "checks": [asdict(check) for check in self.checks],
            "kept": self.kept.to_json() if self.kept else None,
            "all": self.all.to_json(),
        }


def preferred(choice: str, swapped: bool) -> str:
    """Return which video of a pair a rater preferred, `first`, `second` or `tie`, from the side that was chosen.

    `choice` is `left`, `right` or `same`. If `swapped`, the first video was on the right.
    """
    if choice == "same":
        return TIE
    return FIRST if (choice == "left") != swapped else SECOND


def verdicts(rater: Rater, position: int) -> dict[str, str]:
    swapped = rater.showings[position].swapped
    return {key: preferred(choice, swapped) for key, choice in rater.answers[position].choices.items()}


def check_rater(plan: StudyPlan, rater: Rater) -> RaterCheck:
    """Return how a rater did on the attention checks, and whether the plan's rule leaves the rater out."""
    tests = {check.id for check in plan.checks}
    answers = [verdicts(rater, at) for at in rater.answers if rater.showings[at].comparison in tests]
    failed = sum(answer[plan.dimensions[0].key] != FIRST or SECOND in answer.values() for answer in answers)
    why = ""
    if plan.checks and not answers:
        why = "answered no check"
    elif answers and failed / len(answers) > plan.max_failed:
        why = f"failed {failed} of {len(answers)} checks"
    return RaterCheck(rater.id, len(rater.answers), rater.finished, len(answers), failed, why)


def real_answers(plan: StudyPlan, rater: Rater) -> list[tuple[str, dict[str, str]]]:
    """Return the id of each comparison that the rater answered, with the verdict per dimension.

    Attention checks and repeated comparisons are left out.
    """
    planned = {comparison.id for comparison in plan.comparisons}
    return [
        (showing.comparison, verdicts(rater, at))
        for at, showing in enumerate(rater.showings)
        if at in rater.answers and not showing.repeat and showing.comparison in planned
    ]


def study_results(folder: Path) -> StudyResults:
    plan, plan_hash = read_plan(folder)
    joined = [read_rater(path, plan_hash) for path in sorted((folder / ANSWERS).glob("*.jsonl"))]
    raters = [rater for rater in joined if rater and rater.answers]
    if not raters:
        raise ConfigError(f"nobody has answered yet in {folder}; start it with `sage-grpo study run {folder}`")
    checks = [check_rater(plan, rater) for rater in raters]
    passed = [rater for rater, check in zip(raters, checks, strict=True) if not check.left_out]
    return StudyResults(
        title=plan.title,
        plan=plan_hash,
        rule=plan.rule,
        method=METHOD,
        notes=list(plan.notes),
        raters=RaterCounts(
            joined=len(joined),
            answered=len(raters),
            kept=len(passed),
            left_out=len(raters) - len(passed),
            finished=sum(rater.finished for rater in raters),
        ),
        checks=checks,
        kept=summarise(plan, passed) if passed else None,
        all=summarise(plan, raters),
    )


def summarise(plan: StudyPlan, raters: Sequence[Rater]) -> GroupResult:
    answers = [(r, name, verdict) for r, rater in enumerate(raters) for name, verdict in real_answers(plan, rater)]
    given = [answer for rater in raters for answer in rater.answers.values()]
    sides = [choice == "left" for answer in given for choice in answer.choices.values() if choice != "same"]
    return GroupResult(
        raters=len(raters),
        prompts=len({plan.by_id[name].prompt_id for _, name, _ in answers}),
        comparisons=len(answers),
        median_seconds=round(median(answer.first_ms / 1000 for answer in given), 3),
        left_share=share(sides) if sides else None,
        repeats=_consistency(raters),
        dimensions={
            dimension.key: _dimension(
                plan, dimension.name, len(raters), [(r, name, verdict[dimension.key]) for r, name, verdict in answers]
            )
            for dimension in plan.dimensions
        },
    )


def _consistency(raters: Sequence[Rater]) -> Repeats:
    """Count the verdicts on repeated pairs that are the same as at the first showing, when the sides were exchanged."""
    same = of = 0
    for rater in raters:
        first = {showing.comparison: at for at, showing in enumerate(rater.showings) if not showing.repeat}
        for at, showing in enumerate(rater.showings):
            if showing.repeat and at in rater.answers and first[showing.comparison] in rater.answers:
                now, before = verdicts(rater, at), verdicts(rater, first[showing.comparison])
                same += sum(now[key] == before[key] for key in now)
                of += len(now)
    return Repeats(same, of)


def _dimension(plan: StudyPlan, name: str, raters: int, answers: Sequence[tuple[int, str, str]]) -> DimensionResult:
    by_id, pairs = plan.by_id, list(plan.pairs)
    prompts = {prompt: i for i, prompt in enumerate(dict.fromkeys(c.prompt_id for c in plan.comparisons))}
    rows, units = [], defaultdict(list)
    tally = {pair: dict.fromkeys(WORTH, 0) for pair in pairs}
    for rater, key, verdict in answers:
        comparison = by_id[key]
        pair = (comparison.first.source, comparison.second.source)
        rows.append((rater, prompts[comparison.prompt_id], pairs.index(pair), WORTH[verdict]))
        units[key].append(verdict)
        tally[pair][verdict] += 1
    table = AnswerCounts.of(rows, (raters, len(prompts), len(pairs)))
    rates = win_rates(table, SEED)
    indices = [(plan.sources.index(a), plan.sources.index(b)) for a, b in pairs]
    scores = bradley_terry(table, indices, len(plan.sources), SEED)
    ties = sum(counts[TIE] for counts in tally.values())
    return DimensionResult(
        name=name,
        pairs=[
            PairResult(*pair, tally[pair][FIRST], tally[pair][TIE], tally[pair][SECOND], rate)
            for pair, rate in zip(pairs, rates, strict=True)
        ],
        ties=ties / len(rows) if rows else None,
        alpha=krippendorff(list(units.values())),
        scores=dict(zip(plan.sources, scores.scores, strict=True)),
        separated=scores.separated,
        separated_resamples=scores.separated_resamples,
    )


def dump_results(results: StudyResults) -> bytes:
    return (json.dumps(results.to_json(), indent=1, ensure_ascii=False) + "\n").encode()
