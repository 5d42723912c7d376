"""A user's mistake is told in a sentence, without a stack trace."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.text import Text


@contextmanager
def user_errors(*more: type[Exception]) -> Iterator[None]:
    """Print errors that have an explanation for the user, and exit with 2. All others keep their trace."""
    from sage_grpo.config import ConfigError

    known: tuple[type[Exception], ...] = (ConfigError, *more)
    try:
        yield
    except Exception as error:
        if not isinstance(error, known) and type(error).__name__ not in EXPLAINED:
            raise
        Console(stderr=True).print("[bold red]error:[/]", Text(str(error)), highlight=False)
        raise typer.Exit(2) from None


# By name, so that telling a typing mistake does not import the whole trainer.
EXPLAINED = {
    "PromptError", "ReplayError", "RewardFailure", "DamagedCheckpoint", "MissingExtra", "ModelError", "TuningError",
    "DeviceError", "SilentTraining", "CheckpointError", "StorageError", "RewardError", "MissingWeights", "FleetError",
    "ProcessFailure",
}  # fmt: skip
