"""`sage-grpo report`: a run, or several next to each other, on one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sage_grpo.cli.arguments import finite, writable_file
from sage_grpo.cli.errors import user_errors

if TYPE_CHECKING:
    from typing import Any


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders that `sage-grpo train` wrote.")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The page; by default report.html in the run, or here for several runs.", callback=writable_file
        ),
    ] = None,
    price: Annotated[
        float, typer.Option(min=0, help="Dollars for an hour of one process (GPU).", callback=finite)
    ] = 2.5,
    smooth: Annotated[
        float,
        typer.Option(
            min=0, max=0.999, help="Weight of the past in a curve, an iteration; 0 for none.", callback=finite
        ),
    ] = 0.9,
    x: Annotated[
        Literal["iterations", "hours"], typer.Option(help="Curves over iterations, or process hours.")
    ] = "iterations",
    megabytes: Annotated[
        float, typer.Option(min=0, help="Most that the videos may add to the page.", callback=finite)
    ] = 24.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print all figures of the page as JSON.")] = False,
) -> None:
    """Show a run on one page: curves, heat maps of the timesteps, videos over time, alarms, cost.

    Several runs are laid over each other, with the settings that differ; those that differ only by seed are pooled.
    The page is one file without a network, also of a run that is still running.

    Example: `sage-grpo report runs/first runs/second --out compared.html`
    """
    from rich.console import Console

    from sage_grpo.config import ConfigError
    from sage_grpo.progress import progress_of

    with user_errors():
        from sage_grpo.report.page import write_page
        from sage_grpo.report.run_page import make_report
        from sage_grpo.runs.folder import RunFolder
        from sage_grpo.runs.read import read_runs

        with progress_of("reading runs", Console(stderr=True)) as emit:
            read = read_runs(runs, emit=emit)
        document = make_report(read, price=price, smooth=smooth, megabytes=megabytes, by_hours=x == "hours")
        target = out or (RunFolder(runs[0]).report if len(runs) == 1 else Path("report.html"))
        try:
            write_page(document.page, target)
        except OSError as error:
            raise ConfigError(f"{target} cannot be written: {error.strerror}; name another place with --out") from None
    if as_json:
        import json

        print(json.dumps(without_nan(document.figures | {"out": str(target)}), ensure_ascii=False))
        return
    _tell(document.figures, target)


def without_nan(value: Any) -> Any:
    """JSON has no NaN: null stands for what was not measured."""
    if isinstance(value, dict):
        return {str(key): without_nan(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(part) for part in value]
    return None if isinstance(value, float) and value - value != 0 else value


def _tell(figures: dict[str, Any], target: Path) -> None:
    import math

    from rich.console import Console
    from rich.text import Text

    console = Console()
    for run in figures["runs"]:
        ends = [run["reward"][side] for side in ("first", "last")]
        reward = " → ".join("–" if math.isnan(value) else f"{value:+.3f}" for value in ends)
        console.print(Text(f"{run['name']}: {run['why']}"), highlight=False)
        line = f"  reward {reward}, {run['hours']:.3g} process hours, ${run['cost']:.2f}, {len(run['alarms'])} alarms"
        console.print(line, highlight=False)
    for notice in figures["notices"]:
        console.print(Text.assemble(("note ", "yellow"), notice), highlight=False)
    size = target.stat().st_size / 1e6
    console.print(Text(f"Open {target} ({size:.1f} MB) in a browser."), highlight=False, soft_wrap=True)
