"""Table 2 in the paper's layout, from the results of an evaluation."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sage_grpo.config import ConfigError
from sage_grpo.evaluation.table import MARKS, plain, ranked
from sage_grpo.paper.experiments import SCORES, SETTINGS, Run

OVERALL = "Overall"
DIGITS = 4  # as in the paper


@dataclass(frozen=True)
class Row:
    """A row of the table: reward setting, method, KL strategy, and mean scores by column."""

    setting: str
    method: str
    variant: str
    means: dict[str, float | None]


def read_rows(results: Path, runs: Sequence[Run]) -> list[Row]:
    """Return a row for the untrained base, if it was evaluated, and a row per run, from an evaluation's results file.

    The column Overall is VQ + MQ + TA in both settings, as in the paper.

    Raises:
        ConfigError: If there is no evaluation yet, or it lacks a run.
    """
    try:
        means: dict[str, Any] = json.loads(results.read_text())["means"]
    except FileNotFoundError:
        raise ConfigError(
            f"there is no {results}: run the evaluation first, with the last of the printed lines"
        ) from None
    missing = [run.name for run in runs if run.name not in means]
    if missing:
        raise ConfigError(f"{results} lacks {', '.join(missing)}: run the evaluation again, with the last printed line")
    base = [Row("", "Base", "(untrained)", _means(means["base"]))] if "base" in means else []
    return base + [Row(run.setting, run.method, run.variant, _means(means[run.name])) for run in runs]


def lower_is_better(results: Path) -> set[str]:
    """Return the scores of an evaluation's results file of which a lower value is better."""
    return {score["name"] for score in json.loads(results.read_text()).get("scores", ()) if score["lower"]}


def _means(scores: dict[str, Any]) -> dict[str, float | None]:
    found = {name: score["mean"] for name, score in scores.items() if name != OVERALL}
    parts = [found.get(name) for name in SCORES]
    known = [part for part in parts if part is not None]
    return {OVERALL: sum(known) if len(known) == len(parts) else None} | found


def columns(rows: Sequence[Row]) -> list[str]:
    return list(rows[0].means)


def markdown(rows: Sequence[Row], lower: Collection[str] = ()) -> str:
    """Return the table as Markdown, with the best three values of each column marked, over both settings.

    `lower` names the columns in which a lower value is better. Their heads have a `↓`.
    """
    names = columns(rows)
    ranks = {name: ranked([row.means.get(name) for row in rows], lower=name in lower) for name in names}
    heads = [f"{name} ↓" if name in lower else name for name in names]
    lines = [f"| Method | Configuration | {' | '.join(heads)} |", "|" + "---|" * (2 + len(names))]
    setting = ""
    for i, row in enumerate(rows):
        if row.setting != setting:
            setting = row.setting
            weights = ", ".join(f"{name} {weight:g}" for name, weight in zip(SCORES, SETTINGS[setting], strict=True))
            lines.append(f"| *Setting {setting}: {weights}* |" + " |" * (1 + len(names)))
        cells = [MARKS.get(ranks[name][i] or 0, "{}").format(plain(row.means.get(name), DIGITS)) for name in names]
        lines.append(f"| {row.method} | {row.variant} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", "**Best**, <u>second</u>, *third* over both settings. Overall is VQ + MQ + TA.\n"])
