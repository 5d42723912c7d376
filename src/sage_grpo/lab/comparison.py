"""What the reports of both worlds share: progress, rows of a table before and after, curves."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from sage_grpo.report.svg import Curve
from sage_grpo.runs.folder import RunFolder
from sage_grpo.statistics import effect
from sage_grpo.training.trackers import read_metrics

SHOWN = 8  # pairs of videos in a report


@contextmanager
def counting(console: Console, total: int) -> Iterator[Callable[[int], None]]:
    columns = TextColumn("  videos"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda done: progress.update(task, completed=done)


def most_telling(gains: Tensor) -> list[int]:
    """Pairs at even places of the order by gain, so that the failures are shown too."""
    order = gains.argsort(stable=True).tolist()
    places = torch.linspace(0, len(order) - 1, min(SHOWN, len(order))).round().long().tolist()
    return [order[i] for i in reversed(places)]


def paired_rows(columns: dict[str, tuple[Tensor, Tensor]]) -> list[list[str]]:
    """Of values before and after, one a video: what, before, after, paired difference with interval."""
    rows = []
    for name, (old, new) in columns.items():
        change = effect((new - old).tolist())
        difference = f"{change.mean:+.3f} [{change.low:+.3f}, {change.high:+.3f}]"
        rows.append([name, f"{old.mean():.3f}", f"{new.mean():.3f}", difference])
    return rows


def diversity_row(before: float, after: float, name: str = "held out: diversity") -> list[str]:
    return [name, f"{before:.3f}", f"{after:.3f}", f"{after - before:+.3f}"]


def curve_reader(folder: str) -> Callable[[str, str], Curve]:
    """Curves of a run by the key of its log and a name to show."""
    log = read_metrics(RunFolder(Path(folder)).log)

    def curve(key: str, name: str) -> Curve:
        rows = [row for row in log if row.get(key) is not None]
        return Curve(name, [row["step"] for row in rows], [row[key] for row in rows])

    return curve
