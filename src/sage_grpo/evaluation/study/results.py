"""What the answers come to: win rates, scores, agreement and checks, with and without those who are left out."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from sage_grpo.config import ConfigError
from sage_grpo.evaluation.study.plan import ANSWERS, StudyPlan, read_plan
from sage_grpo.evaluation.study.statistics import RESAMPLES, AnswerCounts, bradley_terry, krippendorff, win_rates
from sage_grpo.evaluation.study.store import Rater, read_rater
from sage_grpo.statistics import share

FIRST, TIE, SECOND = "first", "tie", "second"
WORTH = {FIRST: 1.0, TIE: 0.5, SECOND: 0.0}
SEED = 0  # of the bootstrap: the same answers give the same intervals
METHOD = (
    "Win rate: (wins + half of ties) / answers. Intervals: 95 %, percentiles of a two-way (pigeonhole) bootstrap over "
    f"raters and prompts, {RESAMPLES} resamples, seed {SEED}; where all answers agree, by Wilson on the smaller of "
    "both numbers. Scores: Bradley–Terry by maximum likelihood, ties as half a win each way, log strengths, "
    "mean 0. Agreement: Krippendorff's α, nominal."
)


@dataclass(frozen=True)
class Checked:
    """How a rater did on what is known."""

    rater: str
    answered: int
    finished: bool
    checks: int
    failed: int
    left_out: str  # why, or nothing


def preferred(choice: str, swapped: bool) -> str:
    """The choice of a side as one of the pair's first and second."""
    if choice == "same":
        return TIE
    return FIRST if (choice == "left") != swapped else SECOND


def verdicts(rater: Rater, position: int) -> dict[str, str]:
    swapped = rater.showings[position].swapped
    return {key: preferred(choice, swapped) for key, choice in rater.answers[position].choices.items()}


def check_rater(plan: StudyPlan, rater: Rater) -> Checked:
    """By the rule that the plan has fixed."""
    tests = {one.id for one in plan.checks}
    seen = [verdicts(rater, at) for at in rater.answers if rater.showings[at].comparison in tests]
    failed = sum(one[plan.dimensions[0].key] != FIRST or SECOND in one.values() for one in seen)
    why = ""
    if plan.checks and not seen:
        why = "answered no check"
    elif seen and failed / len(seen) > plan.max_failed:
        why = f"failed {failed} of {len(seen)} checks"
    return Checked(rater.id, len(rater.answers), rater.finished, len(seen), failed, why)


def real_answers(plan: StudyPlan, rater: Rater) -> list[tuple[str, dict[str, str]]]:
    """Comparison and verdicts, without checks and repeats."""
    planned = {one.id for one in plan.comparisons}
    return [
        (showing.comparison, verdicts(rater, at))
        for at, showing in enumerate(rater.showings)
        if at in rater.answers and not showing.repeat and showing.comparison in planned
    ]


def study_results(folder: Path) -> dict[str, Any]:
    """As a document for results.json."""
    plan, plan_hash = read_plan(folder)
    found = [read_rater(path, plan_hash) for path in sorted((folder / ANSWERS).glob("*.jsonl"))]
    raters = [one for one in found if one and one.answers]
    if not raters:
        raise ConfigError(f"nobody has answered yet in {folder}; start it with `sage-grpo study run {folder}`")
    checked = [check_rater(plan, one) for one in raters]
    kept = [rater for rater, how in zip(raters, checked, strict=True) if not how.left_out]
    return {
        "version": 1,
        "title": plan.title,
        "plan": plan_hash,
        "rule": plan.rule,
        "method": METHOD,
        "notes": list(plan.notes),
        "raters": {
            "joined": len(found),
            "answered": len(raters),
            "kept": len(kept),
            "left_out": len(raters) - len(kept),
            "finished": sum(one.finished for one in raters),
        },
        "checks": [asdict(one) for one in checked],
        "kept": summarise(plan, kept) if kept else None,
        "all": summarise(plan, raters),
    }


def summarise(plan: StudyPlan, raters: Sequence[Rater]) -> dict[str, Any]:
    answers = [(r, one, verdict) for r, rater in enumerate(raters) for one, verdict in real_answers(plan, rater)]
    times = [one.first_ms / 1000 for rater in raters for one in rater.answers.values()]
    sides = [
        c == "left" for rater in raters for one in rater.answers.values() for c in one.choices.values() if c != "same"
    ]
    same, of = _consistency(raters)
    return {
        "raters": len(raters),
        "prompts": len({plan.by_id[one].prompt_id for _, one, _ in answers}),
        "comparisons": len(answers),
        "median_seconds": round(median(times), 3),
        "left_share": list(share(sides)) if sides else None,
        "repeats": {"same": same, "of": of},
        "dimensions": {
            one.key: {"name": one.name} | _dimension(plan, len(raters), [(r, c, v[one.key]) for r, c, v in answers])
            for one in plan.dimensions
        },
    }


def _consistency(raters: Sequence[Rater]) -> tuple[int, int]:
    """Verdicts on the repeated pair that are the same with sides exchanged."""
    same = of = 0
    for rater in raters:
        first = {one.comparison: at for at, one in enumerate(rater.showings) if not one.repeat}
        for at, one in enumerate(rater.showings):
            if one.repeat and at in rater.answers and first[one.comparison] in rater.answers:
                now, before = verdicts(rater, at), verdicts(rater, first[one.comparison])
                same += sum(now[key] == before[key] for key in now)
                of += len(now)
    return same, of


def _dimension(plan: StudyPlan, raters: int, answers: Sequence[tuple[int, str, str]]) -> dict[str, Any]:
    by_id, pairs = plan.by_id, list(plan.pairs)
    prompts = {name: i for i, name in enumerate(dict.fromkeys(one.prompt_id for one in plan.comparisons))}
    rows, units = [], defaultdict(list)
    tally = {pair: dict.fromkeys(WORTH, 0) for pair in pairs}
    for rater, name, verdict in answers:
        one = by_id[name]
        pair = (one.first.source, one.second.source)
        rows.append((rater, prompts[one.prompt_id], pairs.index(pair), WORTH[verdict]))
        units[name].append(verdict)
        tally[pair][verdict] += 1
    table = AnswerCounts.of(rows, (raters, len(prompts), len(pairs)))
    rates = win_rates(table, SEED)
    places = [(plan.sources.index(a), plan.sources.index(b)) for a, b in pairs]
    scores = bradley_terry(table, places, len(plan.sources), SEED)
    ties = sum(one[TIE] for one in tally.values())
    return {
        "pairs": [
            {
                "first": pair[0],
                "second": pair[1],
                "wins": tally[pair][FIRST],
                "ties": tally[pair][TIE],
                "losses": tally[pair][SECOND],
                "rate": asdict(rate) if rate else None,
            }
            for pair, rate in zip(pairs, rates, strict=True)
        ],
        "ties": ties / len(rows) if rows else None,
        "alpha": krippendorff(list(units.values())),
        "scores": {name: asdict(score) for name, score in zip(plan.sources, scores.scores, strict=True)},
        "separated": scores.separated,
        "separated_resamples": scores.separated_resamples,
    }


def dump_results(found: dict[str, Any]) -> bytes:
    return (json.dumps(found, indent=1, ensure_ascii=False) + "\n").encode()
