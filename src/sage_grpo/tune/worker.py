"""The program of a search's training run, in each of its processes: `python -m sage_grpo.tune.worker FOLDER PARENT`.

FOLDER is the folder of the run, and PARENT the process id of the search.
"""

import os
import signal
import sys
from pathlib import Path

from rich.console import Console

from sage_grpo.config import load_recipe
from sage_grpo.core.callback import Callback, Metrics
from sage_grpo.core.loop import Loop
from sage_grpo.distributed.launch import recording_failures
from sage_grpo.distributed.processes import launched, launched_rank, leave
from sage_grpo.models.library_logging import quiet_libraries
from sage_grpo.training.trainer import Trainer

RECIPE = "recipe.yaml"


class EndWithSearch(Callback):
    """A callback that lets the run save and end if the search that started it no longer exists."""

    def __init__(self, parent: int) -> None:
        self.parent = parent

    def on_iteration(self, loop: Loop, metrics: Metrics) -> None:
        try:
            os.kill(self.parent, 0)
        except OSError:
            os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    folder, parent = Path(sys.argv[1]), int(sys.argv[2])
    quiet_libraries()
    with recording_failures(folder, launched_rank(), launched()):
        config = load_recipe(folder / RECIPE)
        Trainer(config=config, callbacks=[EndWithSearch(parent)], console=Console(quiet=True)).train()
    leave()


if __name__ == "__main__":
    main()
