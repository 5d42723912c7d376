"""`sage-grpo rewards list`: which scorers there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text

    from sage_grpo.evaluation.catalogue import Entry


def list_rewards(as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False) -> None:
    """Show every built-in scorer: its scores, options and presets, and what it needs. No weights are loaded.

    Example: `sage-grpo rewards list`
    """
    from rich.console import Console

    console = Console(stderr=as_json)
    with console.status("looking"):
        from sage_grpo.evaluation.catalogue import catalogue

        entries = catalogue()
    if as_json:
        import json

        print(json.dumps([entry.as_dict() for entry in entries], indent=1, ensure_ascii=False))
        return
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.HORIZONTALS, show_lines=True, header_style="bold", expand=False, width=min(console.width, 100)
    )
    table.add_column("type", no_wrap=True, style="bold")
    table.add_column("what it is")
    for entry in entries:
        table.add_row(entry.name, _about(entry))
    console.print(table, highlight=False)
    console.print(
        "In a recipe:         rewards: [{type: motion, options: {low: 0.02}}]\n"
        "On your own videos:  sage-grpo rewards score FOLDER\n"
        "How they are gamed:  sage-grpo rewards audit",
        highlight=False,
        markup=False,
    )


def _about(entry: Entry) -> Group:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    scores = (
        ", ".join(entry.scores) if entry.scores else f"known when it is {'installed' if entry.missing else 'built'}"
    )
    options = [f"{name} (required)" for name in entry.required]
    options += [f"{name}={_value(value)}" for name, value in entry.defaults.items()]
    lines = {
        "scores": Text(f"{scores} ({'groupwise: compares videos' if entry.groupwise else 'pointwise'})"),
        "options": Text(", ".join(options)),
        "presets": Text(", ".join(_preset(*item) for item in entry.presets.items())),
        "needs": _needs(entry),
    }
    grid = Table.grid(padding=(0, 1))
    grid.add_column(style="dim", no_wrap=True, min_width=7)
    for label, text in lines.items():
        if text:
            grid.add_row(label, text)
    return Group(Text(entry.summary), grid)


def _needs(entry: Entry) -> Text:
    from rich.text import Text

    if entry.missing:
        return Text(entry.install or entry.missing, style="yellow")
    needs = [f"option {name}" for name in entry.required]
    needs += ["weights, from the hub or a folder in option path"] if entry.downloads else []
    needs += ["clips of the laboratory"] if entry.laboratory else []
    return Text(", ".join(needs) or "nothing more", style="green" if entry.ready else "")


def _value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _preset(name: str, weights: Any) -> str:
    return f"{name} ({', '.join(f'{score} {weight:g}' for score, weight in weights.items())})"
