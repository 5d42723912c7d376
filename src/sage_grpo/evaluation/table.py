"""Format results as text tables: means with the best three of each score marked, differences, and win rates."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sage_grpo.evaluation.results import Difference, EvaluationResults, Interval
from sage_grpo.evaluation.scores import Score

MARKS = {1: "**{}**", 2: "<u>{}</u>", 3: "*{}*"}  # of markdown
STANDS, ALONE = "●", "○"
KEY = (
    f"{STANDS} The interval excludes 0, and the difference is significant among all comparisons of its kind, at a "
    f"false discovery rate of 5 % (Benjamini-Hochberg). {ALONE} The interval excludes 0, but with so many comparisons "
    "the difference may be chance. The p-values come from Student's t over prompts."
)


@dataclass(frozen=True)
class Grid:
    """A table of text. `ranks` marks the cells that are among the best three of their column."""

    title: str
    header: list[str]
    rows: list[list[str]]
    note: str = ""
    ranks: Mapping[tuple[int, int], int] | None = None  # row and column → 1, 2, 3


def ranked(values: Sequence[float | None], lower: bool = False) -> list[int | None]:
    """Return the rank of each value: 1, 2 or 3 for the best three, else None. A value of None has no rank.

    Equal values share the better rank. With `lower`, the lowest value is best.
    """
    known = [value for value in values if value is not None]
    ranks: list[int | None] = []
    for value in values:
        better = sum(other < value if lower else other > value for other in known) if value is not None else 3
        ranks.append(better + 1 if better < 3 else None)
    return ranks


def decimals(values: Sequence[float | None]) -> int:
    """Return the number of decimals, from 2 to 6, with which the largest absolute value shows three digits."""
    largest = max((abs(value) for value in values if value is not None), default=1.0)
    return min(max(2 - math.floor(math.log10(largest)), 2), 6) if largest > 0 else 2


def plain(value: float | None, digits: int, sign: str = "") -> str:
    if value is None:
        return "–"
    return f"{round(value, digits) + 0.0:{sign}.{digits}f}".replace("-", "−")


def with_interval(interval: Interval, digits: int, sign: str = "+") -> str:
    if interval.low is None:
        return plain(interval.mean, digits, sign)
    return f"{plain(interval.mean, digits, sign)} {ends(interval, digits, sign)}"


def ends(interval: Interval, digits: int, sign: str = "+") -> str:
    return f"[{plain(interval.low, digits, sign)}, {plain(interval.high, digits, sign)}]"


def heading(score: Score) -> str:
    """Return the heading of a score's column: its name, and an arrow up or down to where it is better.

    If no source was trained on the score, the heading says that it is held out.
    """
    return f"{arrow(score)}{'' if score.trained else ' (held out)'}"


def arrow(score: Score) -> str:
    return f"{score.name} {'↓' if score.lower else '↑'}"


def digits_of(results: EvaluationResults) -> dict[str, int]:
    return {s.name: decimals([means[s.name].mean for means in results.means.values()]) for s in results.scores}


def main_table(results: EvaluationResults) -> Grid:
    """Return the table of means: a row per source and a column per score, in the form of the paper's Table 2."""
    scores, digits, ranks = results.scores, digits_of(results), {}
    rows = [[name] for name in results.sources]
    for column, score in enumerate(scores, 1):
        means = [results.means[name][score.name].mean for name in results.sources]
        for row, (mean, rank) in enumerate(zip(means, ranked(means, score.lower), strict=True)):
            rows[row].append(plain(mean, digits[score.name]))
            if rank:
                ranks[row, column] = rank
    size = f"{results.prompts} prompts × {len(results.seeds)} seeds"
    sampling = f"{results.note}. " if results.note else ""
    note = f"Means over {size}. {sampling}{_overall(scores)}{_masked(results)}".strip()
    return Grid("Scores", ["source", *map(heading, scores)], rows, note, ranks)


def _overall(scores: Sequence[Score]) -> str:
    parts = [f"{score.weight:g}·{score.name}" for score in scores if score.weight]
    return f"Overall is {' + '.join(parts)}. ".replace("+ -", "− ") if len(parts) > 1 else ""


def _masked(results: EvaluationResults) -> str:
    """Return a sentence on how many videos lack each score, and the commonest reason; empty if none lacks any."""
    parts = []
    for score in results.scores:
        reasons: dict[str, int] = {}
        for masked in results.masked.values():
            for reason, count in masked.get(score.name, {}).items():
                reasons[reason] = reasons.get(reason, 0) + count
        if reasons:
            commonest = max(reasons, key=lambda reason: reasons[reason])
            parts.append(f"{score.name} of {sum(reasons.values())} videos ({commonest})")
    return f"Not scored, and in no mean: {'; '.join(parts)}. " if parts else ""


def mark(difference: Difference) -> str:
    if not difference.excludes_zero:
        return ""
    return f" {STANDS}" if difference.stands else f" {ALONE}"


def differences(results: EvaluationResults) -> Iterator[Grid]:
    """Yield tables of differences to the reference source: of scores that a source was trained on, then of others.

    The others are held out. In a single table, they would be out of sight.
    """
    digits, reference = digits_of(results), results.reference
    cells = {
        (row.source, row.score): with_interval(row.difference, digits[row.score]) + mark(row.difference)
        for row in results.comparisons
        if row.against == reference
    }
    names = [name for name in results.sources if name != reference]
    notes = [
        f"Each pair has the same prompt and seed. Intervals: 95 %, bootstrap over prompts (BCa). {KEY}",
        losses(results),
    ]
    for trained, kind in ((True, "trained on"), (False, "held out")):
        scores = [score for score in results.scores if score.trained == trained]
        if scores:
            rows = [[name, *(cells[name, score.name] for score in scores)] for name in names]
            yield Grid(f"Difference to {reference}, {kind}", ["source", *map(arrow, scores)], rows, notes.pop(0))


def losses(results: EvaluationResults) -> str:
    """Return a sentence on the scores in which sources are significantly worse than the reference, or an empty text.

    With this sentence, no gain is reported without its price.
    """
    parts = []
    for score in results.scores:
        names = [
            row.source
            for row in results.comparisons
            if row.against == results.reference
            and row.score == score.name
            and STANDS in mark(row.difference)
            and ((row.difference.mean or 0) > 0) == score.lower
        ]
        if names:
            parts.append(f"{score.name}{'' if score.trained else ', held out'} ({', '.join(names)})")
    worse = f"Significantly worse than {results.reference} ({STANDS}): {'; '.join(parts)}."
    return worse if parts else ""


def win_rates(results: EvaluationResults) -> Grid:
    reference = results.reference
    cells = {
        (row.source, row.score): percent(row.difference.wins) for row in results.comparisons if row.against == reference
    }
    names = [name for name in results.sources if name != reference]
    rows = [[name, *(cells[name, score.name] for score in results.scores)] for name in names]
    note = "Share of pairs (same prompt and seed) in which the source is better. A tie counts as half a win."
    return Grid(f"Win rate against {reference}, %", ["source", *map(heading, results.scores)], rows, note)


def percent(share: Interval) -> str:
    mean, low, high = (None if value is None else 100 * value for value in (share.mean, share.low, share.high))
    return with_interval(Interval(mean, low, high, share.prompts), 0, "")


def duels(results: EvaluationResults) -> Grid | None:
    """Return a table of the win rates of every source against every other, by the first score.

    Return None for fewer than three sources, because `win_rates` has the same numbers.
    """
    names, score = list(results.sources), results.scores[0]
    if len(names) < 3:
        return None
    wins = {(row.source, row.against): row.difference.wins for row in results.comparisons if row.score == score.name}
    both = wins | {(b, a): _reversed(share) for (a, b), share in wins.items()}
    rows = [[a, *(percent(both[a, b]) if a != b else "–" for b in names)] for a in names]
    return Grid(f"Win rate by {score.name}, row against column, %", ["source", *names], rows)


def _reversed(share: Interval) -> Interval:
    """Return the win rate of the other source of a pair: 1 minus `share`, with its interval."""
    mean, low, high = (None if value is None else 1 - value for value in (share.mean, share.high, share.low))
    return Interval(mean, low, high, share.prompts)


def by_tag(results: EvaluationResults) -> Iterator[Grid]:
    """Yield a table per source with its differences to the reference: a row per value of every tag.

    A row is over the prompts with this value. If there is an overall score, it replaces the scores that a source was
    trained on.
    """
    digits = digits_of(results)
    whole = sum(bool(score.weight) for score in results.scores) > 1
    scores = [score for score in results.scores if not (whole and score.trained) or score is results.scores[0]]
    aside = "All scores except Overall are held out. The parts of Overall are in results.json. "
    header = [heading(scores[0]), *map(arrow if whole else heading, scores[1:])]
    note = f"{aside if whole else ''}{KEY}"
    for name in results.sources:
        lines: dict[tuple[str, str], dict[str, Difference]] = {}
        for row in results.tags:
            if row.source == name:
                lines.setdefault((row.tag, row.value), {})[row.score] = row.difference
        if lines:
            rows = [
                [
                    f"{tag}: {value}",
                    str(max(difference.prompts for difference in cells.values())),
                    *(with_interval(cells[s.name], digits[s.name]) + mark(cells[s.name]) for s in scores),
                ]
                for (tag, value), cells in lines.items()
            ]
            yield Grid(f"{name} − {results.reference} by tag", ["tag", "prompts", *header], rows, note)
            note = ""  # once


def grids(results: EvaluationResults) -> list[Grid]:
    several = [*differences(results), win_rates(results), duels(results)] if len(results.sources) > 1 else []
    return [main_table(results), *(grid for grid in several if grid), *by_tag(results)]


def markdown(results: EvaluationResults) -> str:
    parts: list[str] = []
    for i, grid in enumerate(grids(results)):
        lines = [f"## {grid.title}", "", _row(grid.header), "|" + "---|" * len(grid.header)]
        for r, row in enumerate(grid.rows):
            ranks = grid.ranks or {}
            cells = [MARKS[ranks[r, c]].format(cell) if (r, c) in ranks else cell for c, cell in enumerate(row)]
            lines.append(_row(cells))
        legend = "**Best**, <u>second</u>, *third*. " if i == 0 else ""
        parts.append("\n".join([*lines, "", legend + grid.note]).rstrip() + "\n")
    return "\n".join(parts)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
