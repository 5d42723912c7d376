"""Format the results of a study as Markdown and as a page."""

import re

from sage_grpo.evaluation.study.results import GroupResult, StudyResults
from sage_grpo.evaluation.study.statistics import Interval
from sage_grpo.report.page import Headline, Page, PageTable


def percent(rate: Interval | None) -> str:
    if not rate:
        return "–"
    return f"{100 * rate.value:.1f} [{100 * rate.low:.1f}, {100 * rate.high:.1f}]"


def signed(score: Interval) -> str:
    return f"{score.value:+.2f} [{score.low:+.2f}, {score.high:+.2f}]".replace("-", "−")


def rate_table(group: GroupResult, title: str, note: str = "") -> PageTable:
    """Return the table of win rates: a row per pair of sources and a column per dimension, as user studies print it."""
    dimensions = list(group.dimensions.values())
    rows = []
    for k, pair in enumerate(dimensions[0].pairs):
        cells = [percent(dimension.pairs[k].rate) for dimension in dimensions]
        rows.append([f"{pair.first} vs. {pair.second}", *cells])
    return PageTable(title, ["win rate, %", *(dimension.name for dimension in dimensions)], rows, note)


def count_table(group: GroupResult) -> PageTable:
    rows = [
        [f"{pair.first} vs. {pair.second}", dimension.name, str(pair.wins), str(pair.ties), str(pair.losses)]
        for dimension in group.dimensions.values()
        for pair in dimension.pairs
    ]
    return PageTable("Counts", ["pair", "dimension", "won", "same", "lost"], rows)


def score_table(group: GroupResult) -> PageTable:
    dimensions = list(group.dimensions.values())
    separated = [dimension.name for dimension in dimensions if dimension.separated]
    note = "e to the difference of two scores is the odds that one is preferred to the other."
    if separated:
        note += (
            f" In {', '.join(separated)} some sources never lost to the rest and the most likely scores are infinite: "
            "half a win each way was added to every pair, so they are finite, but their size is the addition's."
        )
    rows = [
        [source, *(signed(dimension.scores[source]) for dimension in dimensions)] for source in dimensions[0].scores
    ]
    return PageTable("Bradley–Terry scores", ["source", *(dimension.name for dimension in dimensions)], rows, note)


def quality_table(group: GroupResult) -> PageTable:
    rows = [
        [
            dimension.name,
            "–" if dimension.alpha is None else f"{dimension.alpha:.3f}",
            "–" if dimension.ties is None else f"{100 * dimension.ties:.1f} %",
        ]
        for dimension in group.dimensions.values()
    ]
    return PageTable("Agreement and ties", ["dimension", "Krippendorff's α", "ties"], rows)


def check_table(results: StudyResults) -> PageTable:
    rows = [
        [check.rater[:8], str(check.answered), str(check.checks), str(check.failed), check.left_out or "kept"]
        for check in results.checks
    ]
    return PageTable("Attention checks", ["rater", "answers", "checks", "failed", "outcome"], rows, results.rule)


def tables(results: StudyResults) -> list[PageTable]:
    main = results.main
    out = [rate_table(main, "Win rates", results.method), score_table(main), quality_table(main), count_table(main)]
    if results.kept and results.raters.left_out:
        out.insert(1, rate_table(results.all, "Win rates with those who were left out"))
    return [*out, check_table(results)]


def summary(results: StudyResults) -> str:
    main = results.main
    text = (
        f"{main.raters} raters compared videos of {main.prompts} prompts side by side without knowing their "
        f"sources: {main.comparisons} comparisons, {main.median_seconds:.1f} seconds each (median)."
    )
    if results.raters.left_out:
        text += f" {results.raters.left_out} more failed the attention checks and are left out."
    if not results.kept:
        text += " Nobody passed the attention checks: what follows is of those who failed, and should not be relied on."
    if main.repeats.of:
        text += f" On repeated pairs {main.repeats.same} of {main.repeats.of} verdicts were the same."
    if main.left_share:
        value, low, high = (100 * share for share in main.left_share)
        text += f" Where a side was chosen, it was the left in {value:.0f} % [{low:.0f}, {high:.0f}]."
    return text


def page(results: StudyResults, command: str) -> Page:
    headlines = [
        Headline(
            f"{pair.first} vs. {pair.second}: {dimension.name.lower()}",
            f"{100 * pair.rate.value:.1f} %" if pair.rate else "–",
            f"95 % interval {100 * pair.rate.low:.1f} to {100 * pair.rate.high:.1f}" if pair.rate else "",
        )
        for dimension in results.main.dimensions.values()
        for pair in dimension.pairs[:1]
    ]
    text = "\n\n".join([summary(results), *(f"Note: {note}." for note in results.notes)])
    footer = f"{command}\nplan {results.plan}"
    return Page(results.title, text, headlines, tables=tables(results), footer=footer)


def as_text(words: str) -> str:
    """Return a text as one line of Markdown, with special characters escaped.

    So a name of a source or a title in the text makes no HTML, link, picture, code or table column.
    """
    return re.sub(r"[<>`|\\]|(?<=\])\(", r"\\\g<0>", " ".join(words.split()))


def markdown(results: StudyResults) -> str:
    notes = (as_text(f"Note: {note}.") for note in results.notes)
    parts = [f"# {as_text(results.title)}", as_text(summary(results)), *notes]
    for table in tables(results):
        rows = [table.header, ["---"] * len(table.header), *table.rows]
        lines = ["| " + " | ".join(map(as_text, row)) + " |" for row in rows]
        parts += [f"## {table.title}", "\n".join(lines), *([as_text(table.note)] if table.note else [])]
    return "\n\n".join(parts) + "\n"
