"""`sage-grpo rehearse --full-size`: the real number of weights, here, before a GPU is rented."""

from __future__ import annotations

from pathlib import Path


def rehearse_full(recipe: Path, overrides: list[str], out: Path | None, as_json: bool) -> None:
    """Memory and seconds of loading, training, resuming and exporting, next to the plan."""
    import json
    import tempfile
    from contextlib import nullcontext

    from rich.console import Console
    from rich.table import Table

    from sage_grpo.models.library_logging import quiet_libraries
    from sage_grpo.preflight.rehearsal.full_size import rehearse_full_size, summary

    quiet_libraries()
    console = Console(stderr=as_json)
    room = nullcontext(str(out)) if out else tempfile.TemporaryDirectory()
    with console.status("loading the libraries") as status, room as folder:
        measured = rehearse_full_size(recipe, overrides, Path(folder), status.update)
    if as_json:
        print(json.dumps(summary(measured)))
        return
    table = Table("stage", "seconds", "GB loading", "GB working", box=None, pad_edge=False)
    for name, stage in measured.stages.items():
        seconds = ", ".join(f"{step} {duration:.0f}" for step, duration in stage.seconds.items())
        table.add_row(name, seconds, *(f"{size / 1e9:.2f}" if size else "" for size in (stage.loading, stage.working)))
    console.print(f"[bold]{recipe}[/] with {measured.parameters / 1e9:.2f} billion weights", highlight=False)
    console.print(table)
    planned = ", ".join(f"{name} {size / 1e9:.2f}" for name, size in measured.planned.items())
    written = ", ".join(f"{name} {size / 1e9:.2f}" for name, size in measured.disk.items())
    console.print(f"  planned, GB: {planned}", highlight=False)
    console.print(f"  planned peak / measured peak of an iteration: {measured.ratio:.2f}", highlight=False)
    console.print(f"  on disk, GB: {written}", highlight=False)
    for text in measured.reduced:
        console.print(f"  [cyan]reduced[/]  {text}", highlight=False)
