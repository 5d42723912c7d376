"""`sage-grpo paper`: the tables and figures of the paper, one command each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sage_grpo.cli.arguments import Overrides, finite, writable_folder
from sage_grpo.cli.errors import user_errors

if TYPE_CHECKING:
    from rich.console import Console

    from sage_grpo.paper.commands import Planned

WHICH = typer.Argument(metavar="NAME", help="A table or figure, such as table2; without it, all are listed.")


def paper(
    name: Annotated[str | None, WHICH] = None,
    overrides: Overrides = None,
    base: Annotated[
        str, typer.Option(help="Recipe that every run differs from; lab-paper runs on one CPU core.")
    ] = "hunyuan15-64gpu-released",
    out: Annotated[
        Path | None, typer.Option(help="Folder of the results; default: runs/paper/NAME.", callback=writable_folder)
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Of every run; default: the recipe's, at most 100.")
    ] = None,
    run: Annotated[
        bool, typer.Option("--run", help="Run the commands on this machine. Called again, continue.")
    ] = False,
    table: Annotated[bool, typer.Option("--table", help="Print Table 2 from the finished evaluation.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Evaluate on the first prompts only: for a trial.")] = None,
    launcher: Annotated[
        Literal["torchrun", "slurm"], typer.Option(help="How the printed lines start several processes.")
    ] = "torchrun",
    workers: Annotated[int, typer.Option(min=1, help="Runs at a time, with --run.")] = 1,
    gpu: Annotated[str, typer.Option(help="Kind of GPU for the cost, as `plan` calls it.")] = "h100-80g",
    price: Annotated[
        float | None, typer.Option(min=0, help="Price of a GPU-hour, in any currency.", callback=finite)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print commands, costs and results as JSON.")] = False,
) -> None:
    """Print or run the commands behind each table and figure of the paper, over any recipe.

    Every line is checked before it is printed. Costs are those of `sage-grpo plan`, not measured.

    Example: `sage-grpo paper table2 --base hunyuan15-64gpu-released --price 2.5`

    The same at laboratory size: `sage-grpo paper table2 --base lab-paper --run`
    """
    import json

    from rich.console import Console

    console = Console(stderr=as_json)
    with user_errors():
        from sage_grpo.paper.commands import plan_commands
        from sage_grpo.paper.experiments import EXPERIMENTS
        from sage_grpo.training.build import check_names, refuse_unknown

        if name is None:
            _list(console, as_json)
            return
        refuse_unknown([name], set(EXPERIMENTS), "the paper has no {!r} that can be made")
        folder = str(out or f"runs/paper/{name}")
        planned = plan_commands(EXPERIMENTS[name], base, folder, overrides or [], iterations, limit)
        for recipe in planned.recipes:
            check_names(recipe)
        found: dict[str, Any] = {"name": name, "base": base}
        if run:
            _run(planned, workers, console)
        elif not table:
            found |= _print(planned, launcher, gpu, price, as_json)
        if (run or table) and name == "table2":
            found |= _table(planned, console, as_json)
    if as_json:
        print(json.dumps(found))


def _list(console: Console, as_json: bool) -> None:
    import json

    from rich import box
    from rich.table import Table

    from sage_grpo.paper.experiments import EXPERIMENTS

    if as_json:
        print(json.dumps({name: experiment.title for name, experiment in EXPERIMENTS.items()}))
        return
    grid = Table("name", "what it shows", box=box.SIMPLE_HEAD)
    for name, experiment in EXPERIMENTS.items():
        grid.add_row(name, experiment.title)
    console.print(grid)
    console.print("Print the commands of one: sage-grpo paper table2", highlight=False)


def _print(
    planned: Planned, launcher: Literal["torchrun", "slurm"], gpu: str, price: float | None, as_json: bool
) -> dict[str, Any]:
    """Print every line whole, because it is there to be copied; notes and the cost go to stderr."""
    from rich.console import Console

    from sage_grpo.paper.commands import finishing_line, training_line

    notes, processes = Console(stderr=True), planned.place.recipe.parallel.processes
    lines = [training_line(arguments, processes, launcher) for arguments in planned.trainings]
    finish = [finishing_line(arguments, processes) for arguments in planned.finish]
    said = [planned.experiment.note] if planned.experiment.note else []
    said += ["On every node, set HEAD to the address of the first."] if any("$HEAD" in line for line in lines) else []
    if not as_json:
        print(*lines, *finish, sep="\n", flush=True)
        for note in said:
            notes.print(f"[yellow]note:[/] {note}", highlight=False)
    cost = _cost(planned, gpu, price) if lines and not planned.place.laboratory else None
    if cost and not as_json:
        paid = f", {cost['cost']:,.0f} at {price:g} a GPU-hour" if cost["cost"] is not None else ""
        spread = f"{cost['gpu_hours']:,.0f} GPU-hours ({cost['low']:,.0f} to {cost['high']:,.0f})"
        notes.print(
            f"[yellow]cost:[/] {len(lines)} training runs of {cost['iterations']} iterations take "
            f"{spread} on {processes} × {gpu}{paid}: planned, not measured, without the "
            "evaluation",
            highlight=False,
        )
    return {"commands": lines, "finish": finish, "cost": cost, "notes": said}


def _cost(planned: Planned, gpu: str, price: float | None) -> dict[str, float | None]:
    """Return the planned cost of all runs: that of the recipe, in proportion to the passes of each run."""
    from rich.console import Console

    from sage_grpo.core.passes import forward_passes
    from sage_grpo.models.library_logging import quiet_libraries
    from sage_grpo.preflight.plan.calibration import Calibration
    from sage_grpo.preflight.plan.estimate import estimate
    from sage_grpo.preflight.plan.hardware import find_gpu

    quiet_libraries()
    passes = [forward_passes(recipe) for recipe in planned.recipes]
    with Console(stderr=True).status("planning the cost"):
        plan = estimate(planned.recipes[-1], find_gpu(gpu), Calibration())
    hours, low, high = (case.hours * plan.gpus * sum(passes) / passes[-1] for case in (plan, plan.fast, plan.slow))
    iterations = planned.recipes[0].run.iterations
    paid = None if price is None else hours * price
    return {"gpu_hours": hours, "low": low, "high": high, "cost": paid, "iterations": iterations}


def _run(planned: Planned, workers: int, console: Console) -> None:
    from sage_grpo.paper.run import run_experiment
    from sage_grpo.progress import progress_of

    def say(text: str) -> None:
        console.print(text, highlight=False)

    try:
        run_experiment(planned, workers, lambda what: progress_of(what, console), say)
    except KeyboardInterrupt:
        console.print("stopped; the same command continues", highlight=False)
        raise typer.Exit(130) from None
    console.print(f"Everything is in {planned.place.out}", highlight=False)


def _table(planned: Planned, console: Console, as_json: bool) -> dict[str, Any]:
    from dataclasses import asdict

    from sage_grpo.files import atomic_write
    from sage_grpo.paper.table import lower_is_better, markdown, read_rows

    folder = Path(planned.place.out)
    results = folder / "eval" / "results.json"
    rows = read_rows(results, planned.runs)
    text = markdown(rows, lower_is_better(results))
    atomic_write(folder / "table2.md", text.encode())
    if not as_json:
        from rich.markdown import Markdown

        console.print(Markdown(text.replace("<u>", "").replace("</u>", "")))
        console.print(f"Written to {folder / 'table2.md'}", highlight=False)
    return {"table": [asdict(row) for row in rows], "out": str(folder)}
