"""`sage-grpo first-run`: ten real iterations on a new machine, and one file that says how they went."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sage_grpo.cli.arguments import Overrides, Recipe, writable_folder
from sage_grpo.cli.errors import user_errors


def first_run(
    recipe: Recipe,
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="Folder of the run and its report.", callback=writable_folder)] = Path(
        "first-run"
    ),
    iterations: Annotated[int, typer.Option(min=2, help="Of the recipe; the first one warms up.")] = 10,
    gpu: Annotated[str | None, typer.Option(help="As `plan` calls it; by default recognised by its name.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Run a few real iterations of a recipe on this machine, and write one report that can be sent back.

    Looks at devices, memory, disk, checkpoint, prompts and rewards. Asks every attention kernel whether it gives the
    same bits with and without gradient. Then runs the iterations with as many processes as the recipe has, times each
    phase, and calibrates the plan. The report names no person and no machine.

    Example: `sage-grpo first-run wan-1.3b-24gb-lora prompts.path=prompts.txt`
    """
    import json

    from rich.console import Console

    with user_errors():
        from sage_grpo.config import load_recipe

        load_recipe(recipe, overrides or [])  # a mistake in the recipe ends this before anything is loaded
        console = Console(stderr=as_json)
        with console.status("loading the libraries") as status:
            from sage_grpo.models.library_logging import quiet_libraries
            from sage_grpo.preflight.first_run.run import first_run as run

            quiet_libraries()
            report = run(recipe, overrides or [], out, iterations, gpu, status.update)
    if as_json:
        print(json.dumps(report))
    else:
        show(report, out, console)


def show(report: dict[str, Any], out: Path, console: Any) -> None:
    from rich.markup import escape

    for check in report["checks"]:
        console.print(f"  [green]✓[/] {check['name']}: {escape(check['found'])}", highlight=False)
    for row in report["attention"]:
        name = row["kernel"] + (" with a mask" if row["mask"] else "")
        if row["equal"] is None:
            console.print(f"  [dim]- attention by {name}: not here[/]", highlight=False)
        else:
            mark = "[green]✓[/] same bits" if row["equal"] else f"[yellow]≈[/] off by {row['deviation']:.1e}"
            seconds = row["seconds"]
            took = f"{seconds['forward'] * 1e3:.1f} ms forward, {seconds['training'] * 1e3:.1f} ms with backward"
            console.print(f"  {mark} with and without gradient: attention by {name}, {took}", highlight=False)
    if report["attention_advice"]:
        console.print(f"  faster here: tuning.attention={report['attention_advice']}", highlight=False)
    seconds = report["seconds"]
    console.print(f"{report['iterations']} iterations; replay deviates by {report['replay_deviation']:.1e}")
    for phase, row in seconds.items():
        console.print(f"  {phase:<8} {row['measured']:8.2f} s, planned {row['planned']:.2f} s", highlight=False)
    memory = report["memory"]
    if memory["measured"]:
        measured, planned = memory["measured"] / 1e9, memory["planned"] / 1e9
        console.print(f"  memory   {measured:8.2f} GB, planned {planned:.2f} GB", highlight=False)
    console.print(f"The report is {out}/first-run.json; please send it back.", highlight=False)
    if "calibration" in report:
        console.print(
            f"Plans in this machine's terms: sage-grpo plan RECIPE --calibration {out}/calibration.yaml",
            highlight=False,
        )
