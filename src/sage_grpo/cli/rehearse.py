"""`sage-grpo rehearse`: act out a recipe at toy size before a GPU is rented."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sage_grpo.cli.arguments import Overrides, Recipe, writable_folder
from sage_grpo.cli.errors import user_errors


def rehearse(
    recipe: Recipe,
    overrides: Overrides = None,
    processes: Annotated[
        int | None, typer.Option(min=1, max=4, help="Start so many; by default two on each axis of the layout.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Keep the rehearsed run here; by default it is thrown away.", callback=writable_folder),
    ] = None,
    full_size: Annotated[
        bool,
        typer.Option(
            "--full-size",
            help="The real number of weights, random ones, with a tiny video: memory and seconds of loading, "
            "training, saving, resuming and exporting, next to the plan. Needs the memory.",
        ),
    ] = False,
    fake_cuda: Annotated[
        bool,
        typer.Option(
            "--fake-cuda",
            help="On CUDA tensors without values: finds tensors on the wrong device, and lists waits and transfers by "
            "file and line. Needs g++ and a CPU build of torch. Does not see values, kernels, NCCL, streams or memory.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was covered as JSON.")] = False,
) -> None:
    """Run two iterations of a recipe on this computer, with the same classes at toy size.

    The processes are real: a recipe for 64 GPUs runs with four that share weights and videos as the 64 would. Covers
    loading, rollout, decoding, rewards, update, anchor, averaging, samples, checkpoint, resume and export, and says
    what it reduced and what it had to replace. No weights are downloaded and no GPU is needed. `--processes 1` is the
    quick form, `--fake-cuda` finds what a GPU would refuse.

    Example: `sage-grpo rehearse hunyuan15-64gpu --out rehearsal`
    """
    import os
    import tempfile
    from contextlib import nullcontext

    from rich.console import Console

    os.environ["HF_HUB_OFFLINE"] = "1"  # as promised; what was downloaded before is found
    with user_errors():
        from sage_grpo.config import ConfigError, load_recipe

        if full_size and fake_cuda:
            raise ConfigError("--full-size needs values and --fake-cuda has none; give one of them at a time")
        load_recipe(recipe, overrides or [])  # a mistake in the recipe ends this before anything is loaded
        if full_size:
            from sage_grpo.cli.rehearse_full import rehearse_full

            rehearse_full(recipe, overrides or [], out, as_json)
            return
        if fake_cuda:
            from sage_grpo.cli.rehearse_fake import rehearse_fake

            rehearse_fake(recipe, overrides or [], out, as_json, processes)
            return
        console = Console(stderr=as_json)
        with console.status("loading the libraries") as status:
            from sage_grpo.models.library_logging import quiet_libraries
            from sage_grpo.preflight.rehearsal.run import rehearse as run

            quiet_libraries()
            with nullcontext(str(out)) if out else tempfile.TemporaryDirectory() as scratch:
                folder = out or Path(scratch)
                record = run(recipe, overrides or [], folder, Console(quiet=True), status.update, processes)
    if as_json:
        import json
        from dataclasses import asdict

        print(json.dumps(asdict(record) | {"ok": True, "out": str(out) if out else None}))
        return
    from rich.markup import escape

    console.print(f"[bold]{recipe}[/] rehearsed in {sum(record.covered.values()):.1f} s", highlight=False)
    for name, seconds in record.covered.items():
        console.print(f"  [green]✓[/] {name} ({seconds:.1f} s)", highlight=False)
    facts = ", ".join(f"{name} {value}" for name, value in record.facts.items())
    console.print(f"  {facts}", highlight=False)
    for text in record.reduced:
        console.print(f"  [cyan]reduced[/]  {escape(text)}", highlight=False)
    for text in record.stand_ins:
        console.print(f"  [yellow]replaced[/] {escape(text)}", highlight=False)
    if out:
        console.print(f"  samples, curves and export are in {out}", highlight=False)
