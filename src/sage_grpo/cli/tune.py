"""`sage-grpo tune`: a small search over the settings of a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sage_grpo.cli.arguments import Overrides, Recipe, finite, writable_folder
from sage_grpo.cli.errors import user_errors

if TYPE_CHECKING:
    from rich.console import Console

    from sage_grpo.tune.tune import Found


def tune(
    recipe: Recipe,
    overrides: Overrides = None,
    tried: Annotated[
        list[str] | None,
        typer.Option(
            "--try",
            metavar="KEY=VALUE,...",
            help="Values to try; given several times, all combinations. Default: nine learning rates.",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder for runs, table, picture and the best recipe.", callback=writable_folder)
    ] = Path("tune"),
    passes: Annotated[
        float | None, typer.Option(min=1, help="Budget of the search, in forward passes of a video.", callback=finite)
    ] = None,
    hours: Annotated[float | None, typer.Option(min=0, help="Budget of the search, in hours.", callback=finite)] = None,
    keep: Annotated[int, typer.Option(min=2, help="One candidate in so many is kept at each rung.")] = 3,
    workers: Annotated[int, typer.Option(min=1, help="Runs at a time; each needs GPUs of its own.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Find the settings of a recipe that earn the most reward, for about a quarter of what a grid costs.

    Every candidate runs a little, the best third continues, until one has run as long as the recipe says. Without a
    budget that is the recipe's whole run. If interrupted, the same command continues.

    Example: `sage-grpo tune lab-paper-fast --try optimizer.lr=5e-5,1.5e-4,5e-4 --out runs/tune`
    """
    import json

    from rich.console import Console

    from sage_grpo.progress import progress_of

    console = Console(stderr=as_json)
    with user_errors():
        from sage_grpo.config import ConfigError

        if passes is not None and hours is not None:
            raise ConfigError("give --passes or --hours, not both")
        with console.status("loading the libraries"):
            from sage_grpo.tune.picture import draw
            from sage_grpo.tune.tune import tune as run
        try:
            found = run(
                recipe,
                overrides or [],
                tried or [],
                out,
                passes=passes,
                hours=hours,
                keep=keep,
                workers=workers,
                progress=lambda what: progress_of(what, console),
                emit=console.print,
            )
        except KeyboardInterrupt:
            console.print("stopped; the same command continues", highlight=False)
            raise typer.Exit(130) from None
    draw(found, out / "tune.png")
    if as_json:
        print(json.dumps(found.as_dict()))
    else:
        show(found, out, console)


def show(found: Found, out: Path, console: Console) -> None:
    from math import isfinite

    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), show_footer=True, footer_style="dim")
    table.add_column("candidate", footer="passes")
    for rung in found.ladder:
        table.add_column("reward", footer=f"{rung.passes:,.0f}", justify="right")
    table.add_column("")
    for place, row in enumerate(found.tried):
        said = "best" if not place else ""
        if row.failure:
            said = f"failed: {row.failure.splitlines()[-1][:60]}"
        elif row.alarms:
            said += f"{', ' if said else ''}drift alarms: {row.alarms}"
        style = "bold" if not place else None
        rewards = [f"{reward:.3f}" if isfinite(reward) else "-" for reward in row.rewards]
        cells = (row.name, *rewards, *[""] * (len(found.ladder) - len(rewards)), said)
        table.add_row(*map(escape, cells), style=style)
    console.print(table)
    share = found.passes / found.grid
    console.print(
        f"{found.passes:,.0f} passes, {share:.0%} of the {found.grid:,.0f} that all whole runs would take.\n"
        f"Picture: {out / 'tune.png'}   Recipe: {found.recipe}\n"
        f"The best run is trained already: sage-grpo report {found.tried[0].folder}",
        highlight=False,
    )
    if found.tried[0].reward <= found.tried[0].rewards[0]:
        console.print("Its reward does not rise: give more passes, or try other values.", style="yellow")
    if found.tried[0].alarms:
        console.print("The best run has drift alarms: look at its videos before you take it.", style="yellow")
