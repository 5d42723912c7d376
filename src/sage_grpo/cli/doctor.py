"""`sage-grpo doctor`: what this machine can do, and how to fix what it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sage_grpo.cli.errors import user_errors

GOOD, LACKING, BROKEN = "[green]✓[/]", "[yellow]![/]", "[red]✗[/]"


def doctor(
    folder: Annotated[Path, typer.Option(help="Where runs shall be written.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Say what this machine can do: software, GPUs, attention, disk, ports, hub and scorers, each with its fix.

    A tick is good. An exclamation mark is something that you may do without. A cross must be fixed, and ends the
    command with 1. Nothing is downloaded or kept.

    Example: `sage-grpo doctor --folder /data/runs`
    """
    import json

    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=as_json)
    with user_errors(), console.status("looking at this machine"):
        from sage_grpo.preflight.first_run.doctor import examine, summary

        sections = examine(folder)
        found = summary(sections)
    if as_json:
        print(json.dumps(found, indent=1, ensure_ascii=False))
    else:
        for name, checks in sections.items():
            console.print(f"\n[bold]{name}[/]")
            for check in checks:
                mark = GOOD if check.ok else BROKEN if check.broken else LACKING
                console.print(f"  {mark} {escape(check.name)}: {escape(check.found)}", highlight=False)
                if not check.ok:
                    console.print(f"      [dim]→ {escape(check.fix)}[/]", highlight=False)
        end = f"{found['broken']} to fix" if found["broken"] else "nothing is broken"
        console.print(f"\n{end}. Next: `sage-grpo lab`, or `sage-grpo rehearse RECIPE`", highlight=False)
    if found["broken"]:
        raise typer.Exit(1)
