"""Results as tables of text: one row a source with the best three of each score marked, then differences and wins."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Results = Mapping[str, Any]
MARKS = {1: "**{}**", 2: "<u>{}</u>", 3: "*{}*"}  # of markdown
STANDS, ALONE = "●", "○"
KEY = (
    f"{STANDS} the interval excludes 0, and the difference stands among all of this kind at a false discovery rate "
    f"of 5 % (Benjamini-Hochberg, p by Student's t over prompts); {ALONE} the interval excludes 0, but among so many "
    "comparisons that may be chance."
)


@dataclass(frozen=True)
class Grid:
    """A table of text, and of its cells the place among the best three of their column."""

    title: str
    header: list[str]
    rows: list[list[str]]
    note: str = ""
    ranks: Mapping[tuple[int, int], int] | None = None  # row and column → 1, 2, 3


def ranked(values: Sequence[float | None], lower: bool = False) -> list[int | None]:
    """1 for the best, then 2 and 3; equal values share the better place. None below, and where there is no value."""
    known = [value for value in values if value is not None]
    places: list[int | None] = []
    for value in values:
        better = sum(other < value if lower else other > value for other in known) if value is not None else 3
        places.append(better + 1 if better < 3 else None)
    return places


def decimals(values: Sequence[float | None]) -> int:
    """So many that the largest value has three digits."""
    largest = max((abs(value) for value in values if value is not None), default=1.0)
    return min(max(2 - math.floor(math.log10(largest)), 2), 6) if largest > 0 else 2


def plain(value: float | None, digits: int, sign: str = "") -> str:
    if value is None:
        return "–"
    return f"{round(value, digits) + 0.0:{sign}.{digits}f}".replace("-", "−")


def with_interval(found: Mapping[str, Any], digits: int, sign: str = "+") -> str:
    if found["low"] is None:
        return plain(found["mean"], digits, sign)
    return f"{plain(found['mean'], digits, sign)} {ends(found, digits, sign)}"


def ends(found: Mapping[str, Any], digits: int, sign: str = "+") -> str:
    """Of an interval."""
    return f"[{plain(found['low'], digits, sign)}, {plain(found['high'], digits, sign)}]"


def heading(score: Mapping[str, Any]) -> str:
    """What a column holds: which way is better, and whether anybody was trained on it."""
    return f"{arrow(score)}{'' if score['trained'] else ' (held out)'}"


def arrow(score: Mapping[str, Any]) -> str:
    return f"{score['name']} {'↓' if score['lower'] else '↑'}"


def digits_of(found: Results) -> dict[str, int]:
    return {s["name"]: decimals([one[s["name"]]["mean"] for one in found["means"].values()]) for s in found["scores"]}


def main_table(found: Results) -> Grid:
    """The shape of the paper's Table 2."""
    scores, digits, ranks = found["scores"], digits_of(found), {}
    rows = [[name] for name in found["sources"]]
    for column, score in enumerate(scores, 1):
        means = [found["means"][name][score["name"]]["mean"] for name in found["sources"]]
        for row, (mean, place) in enumerate(zip(means, ranked(means, score["lower"]), strict=True)):
            rows[row].append(plain(mean, digits[score["name"]]))
            if place:
                ranks[row, column] = place
    size = f"{found['prompts']} prompts × {len(found['seeds'])} seeds"
    note = (
        f"Means over {size}. {found['note'] + '. ' if found['note'] else ''}{_overall(scores)}{_masked(found)}".strip()
    )
    return Grid("Scores", ["source", *map(heading, scores)], rows, note, ranks)


def _overall(scores: Sequence[Mapping[str, Any]]) -> str:
    parts = [f"{score['weight']:g}·{score['name']}" for score in scores if score["weight"]]
    return f"Overall is {' + '.join(parts)}. ".replace("+ -", "− ") if len(parts) > 1 else ""


def _masked(found: Results) -> str:
    """How many videos have no score, and the commonest reason: they count in no mean."""
    told = []
    for score in found["scores"]:
        reasons: dict[str, int] = {}
        for one in found["masked"].values():
            for why, count in one.get(score["name"], {}).items():
                reasons[why] = reasons.get(why, 0) + count
        if reasons:
            told.append(f"{score['name']} of {sum(reasons.values())} videos ({max(reasons, key=lambda w: reasons[w])})")
    return f"Not scored, and in no mean: {'; '.join(told)}. " if told else ""


def mark(row: Mapping[str, Any]) -> str:
    return f" {STANDS}" if row["stands"] and row["excludes_zero"] else f" {ALONE}" if row["excludes_zero"] else ""


def differences(found: Results) -> Iterator[Grid]:
    """What was trained on, then what was held out: in one table the second would be out of sight."""
    digits, reference = digits_of(found), found["reference"]
    cells = {
        (row["source"], row["score"]): with_interval(row, digits[row["score"]]) + mark(row)
        for row in found["comparisons"]
        if row["against"] == reference
    }
    names = [name for name in found["sources"] if name != reference]
    notes = [f"Pairs of one prompt and seed; 95 % intervals by bootstrap over prompts (BCa). {KEY}", losses(found)]
    for trained, kind in ((True, "trained on"), (False, "held out")):
        scores = [score for score in found["scores"] if score["trained"] == trained]
        if scores:
            rows = [[name, *(cells[name, score["name"]] for score in scores)] for name in names]
            yield Grid(f"Difference to {reference}, {kind}", ["source", *map(arrow, scores)], rows, notes.pop(0))


def losses(found: Results) -> str:
    """What got worse by a difference that stands: a gain is not reported without its price."""
    told = []
    for score in found["scores"]:
        names = [
            row["source"]
            for row in found["comparisons"]
            if row["against"] == found["reference"]
            and row["score"] == score["name"]
            and STANDS in mark(row)
            and (row["mean"] > 0) == score["lower"]
        ]
        if names:
            told.append(f"{score['name']}{'' if score['trained'] else ', held out'} ({', '.join(names)})")
    return f"Worse than {found['reference']} by a difference that stands ({STANDS}): {'; '.join(told)}." if told else ""


def win_rates(found: Results) -> Grid:
    reference = found["reference"]
    cells = {
        (row["source"], row["score"]): percent(row["wins"])
        for row in found["comparisons"]
        if row["against"] == reference
    }
    names = [name for name in found["sources"] if name != reference]
    rows = [[name, *(cells[name, score["name"]] for score in found["scores"])] for name in names]
    note = "Share of the pairs of one prompt and seed in which the source is better; ties count a half."
    return Grid(f"Win rate against {reference}, %", ["source", *map(heading, found["scores"])], rows, note)


def percent(found: Mapping[str, Any]) -> str:
    scaled = {key: None if found[key] is None else 100 * found[key] for key in ("mean", "low", "high")}
    return with_interval(scaled, 0, "")


def duels(found: Results) -> Grid | None:
    """Every source against every other by the first score; with two sources the table above has said it."""
    names, score = list(found["sources"]), found["scores"][0]
    if len(names) < 3:
        return None
    cells = {
        (row["source"], row["against"]): row["wins"] for row in found["comparisons"] if row["score"] == score["name"]
    }
    turned = {
        (b, a): {"mean": _rest(w["mean"]), "low": _rest(w["high"]), "high": _rest(w["low"])}
        for (a, b), w in cells.items()
    }
    both = cells | turned
    rows = [[a, *(percent(both[a, b]) if a != b else "–" for b in names)] for a in names]
    return Grid(f"Win rate by {score['name']}, row against column, %", ["source", *names], rows)


def _rest(share: float | None) -> float | None:
    return None if share is None else 1 - share


def by_tag(found: Results) -> Iterator[Grid]:
    """A table a source: differences to the reference for every value of every tag; parts of the overall score aside."""
    digits = digits_of(found)
    whole = sum(bool(score["weight"]) for score in found["scores"]) > 1
    scores = [score for score in found["scores"] if not (whole and score["trained"]) or score is found["scores"][0]]
    aside = "All but Overall are held out; its parts are in results.json. "
    header = [heading(scores[0]), *map(arrow if whole else heading, scores[1:])]
    note = f"{aside if whole else ''}{KEY}"
    for name in found["sources"]:
        lines: dict[tuple[str, str], dict[str, Any]] = {}
        for row in found["tags"]:
            if row["source"] == name:
                lines.setdefault((row["tag"], row["value"]), {})[row["score"]] = row
        if lines:
            rows = [
                [
                    f"{tag}: {value}",
                    str(max(row["prompts"] for row in cells.values())),
                    *(with_interval(cells[s["name"]], digits[s["name"]]) + mark(cells[s["name"]]) for s in scores),
                ]
                for (tag, value), cells in lines.items()
            ]
            yield Grid(f"{name} − {found['reference']} by tag", ["tag", "prompts", *header], rows, note)
            note = ""  # once


def grids(found: Results) -> list[Grid]:
    several = [*differences(found), win_rates(found), duels(found)] if len(found["sources"]) > 1 else []
    return [main_table(found), *(grid for grid in several if grid), *by_tag(found)]


def markdown(found: Results) -> str:
    parts: list[str] = []
    for i, grid in enumerate(grids(found)):
        lines = [f"## {grid.title}", "", _row(grid.header), "|" + "---|" * len(grid.header)]
        for r, row in enumerate(grid.rows):
            places = grid.ranks or {}
            cells = [MARKS[places[r, c]].format(cell) if (r, c) in places else cell for c, cell in enumerate(row)]
            lines.append(_row(cells))
        legend = "**Best**, <u>second</u>, *third*. " if i == 0 else ""
        parts.append("\n".join([*lines, "", legend + grid.note]).rstrip() + "\n")
    return "\n".join(parts)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
