"""`sage-grpo export`: trained weights that plain diffusers loads."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sage_grpo.cli.arguments import TrustCode, writable_folder
from sage_grpo.cli.errors import user_errors

LOSS = 0.01  # of the update; more is worth a warning


class Dtype(StrEnum):
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


def export(
    run: Annotated[Path, typer.Argument(help="Run folder, or one of its checkpoints (…/checkpoints/step-…).")],
    out: Annotated[Path, typer.Option(help="Folder to write; it must not exist yet.", callback=writable_folder)],
    merge: Annotated[bool, typer.Option("--merge", help="Merge adapters into a whole checkpoint.")] = False,
    last: Annotated[bool, typer.Option("--last", help="The last weights, even if the run averaged them.")] = False,
    dtype: Annotated[
        Dtype | None, typer.Option(help="Of the written weights; by default as they are, merged layers float32.")
    ] = None,
    trust_code: TrustCode = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Write what a run trained as a folder that plain diffusers loads.

    A LoRA run gives its adapter, or with --merge a whole pipeline; a run of all weights gives the pipeline. A README in
    the folder has the lines that load it. What --merge prints and writes there is how much of the update each precision
    keeps: half precision loses most of a small one.

    Example: `sage-grpo export runs/first --out cat-lora`
    """
    from sage_grpo.config import ConfigError

    with user_errors():
        if out.exists():
            raise ConfigError(f"{out} is there already; choose another --out")
        from sage_grpo.inference.export import export_run, survival_lines

        kind = dtype.value if dtype else None
        written = export_run(run, out, merge=merge, average=not last, dtype=kind, trust_code=trust_code)
    if as_json:
        import json

        print(json.dumps(written))
        return
    from rich.console import Console

    console = Console()
    weights = "averaged weights" if written["averaged"] else "last weights"
    console.print(
        f"Wrote {out} ({written['kind']}, {written['megabytes']:.1f} MB) from {written['checkpoint']}, {weights}.\n"
        f"How to load it: {out}/README.md.",
        highlight=False,
        soft_wrap=True,
    )
    if update := written["update"]:
        console.print(*(f"  {line}" for line in survival_lines(update)), sep="\n", highlight=False, soft_wrap=True)
        share, name = next(iter(update.values()))["survives"], next(iter(update))
        if abs(share - 1) > LOSS:
            console.print(
                f"[yellow]warning:[/] {name} does not hold the update of this run: {share:.1%} of it survives. "
                "Use --dtype float32, or leave out --merge for the adapter, which loses nothing.",
                highlight=False,
                soft_wrap=True,
            )
