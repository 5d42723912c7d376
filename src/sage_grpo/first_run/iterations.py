"""The iterations of a first run, in each of its processes: `python -m sage_grpo.first_run.iterations FOLDER`."""

import json
import sys
from pathlib import Path

import torch
from rich.console import Console

from sage_grpo.config import load_recipe
from sage_grpo.core.loop import Callback, Loop, Metrics
from sage_grpo.distributed.device import HOST
from sage_grpo.distributed.launch import recording_failures
from sage_grpo.distributed.processes import launched, launched_rank, leave
from sage_grpo.files import atomic_write
from sage_grpo.models.library_logging import quiet_libraries
from sage_grpo.training.trainer import Trainer

RECIPE, MEMORY = "recipe.yaml", "memory-{}.json"


class PeakMemory(Callback):
    """The most that a device held in each iteration; the host does not count its tensors."""

    def __init__(self, path: Path) -> None:
        self.path, self.peaks = path, list[int]()

    def on_iteration(self, loop: Loop, metrics: Metrics) -> None:
        device = next(loop.model.module.parameters()).device
        if device.type != HOST.type:
            self.peaks.append(torch.accelerator.max_memory_allocated(device))
            torch.accelerator.reset_peak_memory_stats(device)
            atomic_write(self.path, json.dumps(self.peaks).encode())


def main() -> None:
    folder, rank = Path(sys.argv[1]), launched_rank()
    quiet_libraries()
    with recording_failures(folder, rank, launched()):
        config = load_recipe(folder / RECIPE)
        peaks = PeakMemory(folder / MEMORY.format(rank))
        Trainer(config=config, callbacks=[peaks], console=Console(quiet=True)).train()
    leave()


if __name__ == "__main__":
    main()
