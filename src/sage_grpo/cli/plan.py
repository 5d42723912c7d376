"""`sage-grpo plan`: what a recipe needs, takes and costs, before a GPU is rented."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sage_grpo.cli.arguments import Overrides, Recipe, finite, writable_picture
from sage_grpo.cli.errors import user_errors

if TYPE_CHECKING:
    from sage_grpo.config import RecipeConfig


def plan(
    recipe: Recipe,
    overrides: Overrides = None,
    gpus: Annotated[int | None, typer.Option(help="The same as parallel.processes=N.", min=1)] = None,
    gpu: Annotated[str, typer.Option(help="Kind of GPU, such as h100-80g, a100-80g, rtx4090-24g.")] = "h100-80g",
    price: Annotated[float | None, typer.Option(help="Of a GPU-hour, in any currency.", min=0, callback=finite)] = None,
    sweep: Annotated[
        list[str] | None, typer.Option(help="Other layouts: 'gpus=8,64,512 sp=1,2,4'; also replicate=1,8.")
    ] = None,
    picture: Annotated[Path, typer.Option(help="Where a sweep is drawn.")] = Path("plan.png"),
    calibration: Annotated[Path | None, typer.Option(help="File of --measured: seconds in its terms.")] = None,
    measured: Annotated[
        Path | None,
        typer.Option(help="A run on such GPUs: keep in --calibration what it reached, and plan by it."),
    ] = None,
    explain: Annotated[bool, typer.Option(help="Print every assumption, and where it comes from.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """Memory by part, passes, FLOPs, seconds, cost, disk and interruptions of a recipe. Needs no GPU and no checkpoint.

    Example: `sage-grpo plan hunyuan15-64gpu --gpus 64 --gpu h100-80g --price 2.5`

    Where scaling stops paying: `sage-grpo plan hunyuan15-64gpu --sweep 'gpus=8,64,512,4096 sp=1,2,4,8'`
    """
    import json
    from dataclasses import asdict

    from rich.console import Console

    from sage_grpo.progress import progress_of

    console, notes = Console(), Console(stderr=True)
    changes = [*(overrides or []), *([f"parallel.processes={gpus}"] if gpus else [])]
    with user_errors():
        from sage_grpo.models.library_logging import quiet_libraries
        from sage_grpo.preflight.plan import show
        from sage_grpo.preflight.plan.estimate import estimate
        from sage_grpo.preflight.plan.hardware import find_gpu
        from sage_grpo.preflight.plan.proposals import proposals
        from sage_grpo.preflight.plan.sweep import parse_sweep
        from sage_grpo.preflight.plan.sweep import sweep as run_sweep

        quiet_libraries()
        kind, axes = find_gpu(gpu), parse_sweep(sweep or [])
        config = checked(recipe, changes, as_json=as_json)
        known = calibrated(calibration, measured, gpu)
        if axes:
            from sage_grpo.preflight.plan.picture import draw_sweep

            writable_picture(picture)

            with progress_of("planning", notes) as emit:
                cells = run_sweep(config, kind, known, axes, emit)
            if not any(cell.plan for cell in cells):
                from sage_grpo.config import ConfigError

                raise ConfigError(f"none of these layouts works: {cells[0].why}")
            draw_sweep(cells, f"{recipe} on {gpu}", picture)
            figures: Any = {"sweep": [show.cell_summary(cell, price, cells) for cell in cells], "picture": str(picture)}
        else:
            with notes.status("going through the network without weights"):
                planned = estimate(config, kind, known)
                proposed = proposals(planned)
            figures = show.summary(planned, gpu, price)
            figures["proposals"] = [asdict(one) for one in proposed]
    if as_json:
        print(json.dumps(figures))
    elif axes:
        show.show_sweep(cells, price, console)
        console.print(f"Drawn in {picture}", highlight=False)
    else:
        show.show(planned, gpu, price, console)
        for one in proposed:
            console.print(show.proposal_line(one), highlight=False)
        if explain:
            show.show_assumptions(planned, gpu, console)


def checked(recipe: Path, changes: list[str], *, as_json: bool) -> RecipeConfig:
    """The recipe, if its layout works; else an error that names the nearest layouts that do."""
    import json

    from sage_grpo.config import ConfigError, load_recipe
    from sage_grpo.errors import UserError
    from sage_grpo.preflight.plan.layout import check_layout
    from sage_grpo.preflight.plan.nearest import nearest_layouts
    from sage_grpo.training.build import check_names

    def works(config: RecipeConfig) -> None:
        check_names(config)
        check_layout(config)

    try:
        config = load_recipe(recipe, changes)
        works(config)
    except UserError as error:
        near = nearest_layouts(recipe, changes, works)
        if as_json:
            print(json.dumps({"error": str(error), "nearest": near}))
        layouts = "\n".join(f"  {' '.join(layout)}" for layout in near)
        raise ConfigError(f"{error}\nnearest layouts that work:\n{layouts}" if near else str(error)) from None
    return config


def calibrated(path: Path | None, run: Path | None, gpu: str) -> Any:
    from sage_grpo.preflight.plan.calibration import Calibration, calibrate, read_calibration, write_calibration

    if run is None:
        return read_calibration(path) if path else Calibration()
    from sage_grpo.config import ConfigError, load_recipe
    from sage_grpo.preflight.plan.estimate import estimate
    from sage_grpo.preflight.plan.hardware import find_gpu
    from sage_grpo.runs.folder import RunFolder
    from sage_grpo.training.trackers import read_metrics

    files = RunFolder(run)
    if not files.exists or not files.log.is_file():
        raise ConfigError(f"{run} is not a run: --measured needs its config.yaml and metrics.jsonl")
    config = load_recipe(files.recipe)
    planned = estimate(config, find_gpu(gpu), Calibration())
    rows = read_metrics(files.log)
    fitted = calibrate(rows, planned.seconds, config.rollouts // config.parallel.replicas, gpu, run.name)
    write_calibration(path or Path("calibration.yaml"), fitted)
    return fitted
