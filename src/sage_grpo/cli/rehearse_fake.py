"""How `sage-grpo rehearse --fake-cuda` tells what it found: on a page of eighty columns, or as JSON."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

    from sage_grpo.preflight.rehearsal.fake_report import FakeCudaReport, Row

KINDS = {
    "wait": "The host waits for the device (.item(), bool, masks)",
    "to host": "Device to host; the host waits here too",
    "to device": "Host to device",
}
PHASES = (
    "load",
    "encode",
    "sample",
    "rollout",
    "decode",
    "score",
    "checks",
    "update",
    "copies",
    "gauge",
    "save",
    "resume",
    "export",
    "elsewhere",
)
SHOWN = 14  # lines a table; JSON has all


def rehearse_fake(recipe: Path, overrides: list[str], out: Path | None, as_json: bool, processes: int | None) -> None:
    import tempfile
    from contextlib import nullcontext
    from pathlib import Path

    from rich.console import Console

    from sage_grpo.preflight.rehearsal.fake_cuda import rehearse_on_fake_cuda

    console = Console(stderr=as_json)
    room = nullcontext(str(out)) if out else tempfile.TemporaryDirectory()
    with room as path, console.status("starting a process of its own") as status:
        report = rehearse_on_fake_cuda(recipe, overrides, Path(path), status.update, processes)
    if as_json:
        print(json.dumps(report.to_json() | {"out": str(out) if out else None}))
    elif not report.errors:
        show(report, console)
    if report.errors:
        from rich.text import Text

        for error in report.errors:
            Console(stderr=True).print("[bold red]error:[/]", Text(error), highlight=False)
        raise typer.Exit(2)


def show(report: FakeCudaReport, console: Console) -> None:
    from rich.markup import escape

    from sage_grpo.preflight.rehearsal.fake_report import NOT_SEEN

    among = f", the first of {report.processes} processes" if report.processes > 1 else ""
    console.print(f"[bold]{escape(report.recipe)}[/] on fake CUDA{among}: no tensor was on the wrong device")
    for name, seconds in report.covered.items():
        console.print(f"  [green]✓[/] {name} ({seconds:.1f} s)", highlight=False)
    for text in report.reduced:
        console.print(f"  [cyan]reduced[/]  {escape(text)}", highlight=False)
    for text in report.stand_ins:
        console.print(f"  [yellow]replaced[/] {escape(text)}", highlight=False)
    for kind, title in KINDS.items():
        lines = merged([row for row in report.rows if row.kind == kind])
        if lines:
            console.print(f"\n[bold]{title}[/]", highlight=False)
            console.print(table(lines[:SHOWN], sized=kind != "wait"))
        if len(lines) > SHOWN:
            console.print(f"  and {len(lines) - SHOWN} more (--json)", highlight=False)
    console.print("\nTimes and bytes are of two iterations at toy size.", highlight=False)
    console.print(f"Not seen: {NOT_SEEN}.", highlight=False)


def merged(rows: list[Row]) -> list[tuple[str, str, int, int]]:
    """(phase, place, times, bytes), one line of the project a line, the most frequent first within a phase."""
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.phase, row.place].append(row)
    lines = []
    for (phase, source_line), parts in groups.items():
        inside = list(dict.fromkeys(row.inside for row in sorted(parts, key=lambda r: -r.count) if row.inside))
        more = f" and {len(inside) - 1} more" if len(inside) > 1 else ""
        where = f"{source_line}\n  {short(inside[0])}{more}" if inside else source_line
        lines.append((phase, where, sum(r.count for r in parts), sum(r.bytes for r in parts)))
    return sorted(lines, key=lambda line: (PHASES.index(line[0]), -line[2]))


def short(path: str) -> str:
    """Return a path of a library as its package and file: `torch/…/functional.py`."""
    first, *between, last = path.removeprefix("/").split("/") if "/" in path else ("", path)
    return f"{first}/…/{last}" if between else path


def table(lines: list[tuple[str, str, int, int]], *, sized: bool) -> Table:
    from rich.table import Table

    grid = Table(box=None, pad_edge=True, padding=(0, 1))
    grid.add_column("phase")
    grid.add_column("times", justify="right")
    if sized:
        grid.add_column("bytes", justify="right")
    grid.add_column("where", overflow="fold")
    for phase, where, times, size in lines:
        amount = [f"{size / 1e3:,.1f} kB"] if sized else []
        grid.add_row(phase, str(times), *amount, where)
    return grid
