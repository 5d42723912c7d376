"""The iterations of a first run, in each of its processes: `python -m sage_grpo.preflight.first_run.worker FOLDER`."""

import sys
from pathlib import Path

from rich.console import Console

from sage_grpo.config import load_recipe
from sage_grpo.distributed.launch import recording_failures
from sage_grpo.distributed.processes import launched, launched_rank, leave
from sage_grpo.models.library_logging import quiet_libraries
from sage_grpo.training.trainer import Trainer

RECIPE = "recipe.yaml"


def main() -> None:
    folder, rank = Path(sys.argv[1]), launched_rank()
    quiet_libraries()
    with recording_failures(folder, rank, launched()):
        config = load_recipe(folder / RECIPE)
        Trainer(config=config, console=Console(quiet=True)).train()
    leave()


if __name__ == "__main__":
    main()
