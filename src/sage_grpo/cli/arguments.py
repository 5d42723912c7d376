"""What commands that take a recipe have in common."""

from pathlib import Path
from typing import Annotated

import typer

Recipe = Annotated[Path, typer.Argument(help="YAML file, or the name of a shipped recipe such as lab.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings that differ from the recipe.")
]
TrustCode = Annotated[
    bool,
    typer.Option(
        "--trust-code", help="Run the code that a run folder names: models and rewards that are not built in."
    ),
]
