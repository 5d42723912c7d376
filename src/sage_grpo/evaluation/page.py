"""Build the report page of an evaluation: headline differences, pairs of videos of one prompt and seed, and tables."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from sage_grpo.evaluation.prompts import Task
from sage_grpo.evaluation.results import EvaluationResults, Values
from sage_grpo.evaluation.table import Grid, digits_of, ends, grids, losses, plain
from sage_grpo.evaluation.videos import Folder
from sage_grpo.report.page import Headline, Page, PageTable, VideoPair

PAIRS = 12
PAGE_BYTES = 30_000_000  # of videos; beyond it a page is slow to open
RANKS = {1: "①", 2: "②", 3: "③"}


def make_page(
    results: EvaluationResults,
    values: Mapping[str, Mapping[str, Values]],
    tasks: Sequence[Task],
    seeds: Sequence[int],
    folder: Folder,
    command: str,
) -> Page:
    reference, first = results.reference, results.scores[0].name
    digits = digits_of(results)[first]
    against = [row for row in results.comparisons if row.against == reference and row.score == first]
    headlines = [
        Headline(
            f"{row.source} − {reference}, {first}",
            plain(row.difference.mean, digits, "+"),
            f"95 %: {ends(row.difference, digits)}; wins {100 * row.difference.wins.mean:.0f} % of the pairs",
        )
        for row in against
        if row.difference.mean is not None and row.difference.wins.mean is not None
    ]
    others = [name for name in results.sources if name != reference]
    summary = (
        f"{', '.join(others) or reference} on {len(tasks)} prompts with {len(seeds)} seeds each"
        + (f", compared with {reference} in pairs of one prompt and one seed. " if others else ". ")
        + "Intervals are of 95 % and by bootstrap over prompts: they say how far the result would move with other "
        f"prompts of this kind, not with another training run.\n\n{losses(results)}"
    )
    many = f"{len(others)} models against {reference}" if len(others) > 3 else ", ".join(results.sources)
    return Page(
        f"Evaluation: {many}",
        summary,
        headlines,
        pairs=list(_pairs(values, first, tasks, seeds, folder, digits)),
        tables=[_table(grid) for grid in grids(results)],
        footer=command,
    )


def _table(grid: Grid) -> PageTable:
    ranks = grid.ranks or {}
    rows = [
        [f"{cell} {RANKS[ranks[r, c]]}" if (r, c) in ranks else cell for c, cell in enumerate(row)]
        for r, row in enumerate(grid.rows)
    ]
    for row in rows:
        for plain_sign, firm in (("-", "\N{NON-BREAKING HYPHEN}"), (" ", "\N{NO-BREAK SPACE}")):
            row[0] = row[0].replace(plain_sign, firm)  # a narrow column would part a name
    return PageTable(grid.title, grid.header, rows, ("①②③ best, second, third. " if ranks else "") + grid.note)


def _pairs(
    values: Mapping[str, Mapping[str, Values]],
    score: str,
    tasks: Sequence[Task],
    seeds: Sequence[int],
    folder: Folder,
    digits: int,
) -> Iterator[VideoPair]:
    """Yield pairs of videos with the same prompt and seed: one of the reference source, one of another source.

    The pairs of a source are spread evenly from its largest gain in `score` to its largest loss, so that failures are
    shown too. No pair follows once the videos exceed `PAGE_BYTES`.
    """
    reference, *others = values
    room, each = PAGE_BYTES, max(PAIRS // max(len(others), 1), 3)
    for name in others:
        before, after = values[reference][score], values[name][score]
        gains = (after - before).flatten()
        order = np.argsort(-gains, kind="stable")[: int((~np.isnan(gains)).sum())]  # those without a score come last
        chosen = np.unique(np.linspace(0, len(order) - 1, min(each, len(order))).round().astype(int))
        for index in order[chosen]:
            row, column = divmod(int(index), len(seeds))
            task, seed = tasks[row], seeds[column]
            clips = [folder.video(source, task.id, seed).read_bytes() for source in (reference, name)]
            room -= sum(map(len, clips))
            if room < 0:
                return
            notes = [
                f"{source}, {score} {plain(float(array[row, column]), digits)}"
                for source, array in ((reference, before), (name, after))
            ]
            yield VideoPair(f"{task.prompt.text} (seed {seed})", clips[0], clips[1], *notes)
