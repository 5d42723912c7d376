"""Arguments that several commands have, and what is refused before a command begins its work."""

import math
from pathlib import Path
from typing import Annotated

import typer

from sage_grpo.files import why_not_writable

PICTURES = (".png", ".svg", ".pdf", ".jpg", ".webp")


def finite(value: float | None) -> float | None:
    """Refuse inf and nan, which pass for a number within bounds."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number.")
    return value


def whole_seed(value: int) -> int:
    """Refuse a seed that a recipe would refuse."""
    from sage_grpo.config.algorithm import LARGEST_SEED

    if not 0 <= value <= LARGEST_SEED:
        raise typer.BadParameter(f"{value} is not from 0 to {LARGEST_SEED}.")
    return value


def writable_folder(path: Path | None) -> Path | None:
    """Refuse a folder that cannot be made or written, before the work whose results it is for."""
    if path is not None and (why := why_not_writable(path)):
        raise typer.BadParameter(f"{why}; name another folder.")
    return path


def writable_file(path: Path | None) -> Path | None:
    """The same for a file."""
    if path is not None and path.is_dir():
        raise typer.BadParameter(f"{path} is a folder; name a file in it, such as {path / 'new'}.")
    if path is not None and (why := why_not_writable(path.parent)):
        raise typer.BadParameter(f"{why}; name another place.")
    return path


def writable_picture(path: Path | None) -> Path | None:
    """The same for a picture, whose name says its format."""
    if path is not None and path.suffix not in ("", *PICTURES):
        raise typer.BadParameter(f"{path} names no format of pictures; end it with {', '.join(PICTURES)}.")
    return writable_file(path)


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
