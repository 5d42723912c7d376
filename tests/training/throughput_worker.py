"""Three iterations on two processes, the second with a slow scorer: `python -m training.throughput_worker FOLDER`."""

import json
import sys
import time
from pathlib import Path

import torch

from distributed.worker import brightness, recipe
from sage_grpo.core import loop as core
from sage_grpo.distributed.processes import Processes, launched_rank, leave
from sage_grpo.training.throughput import Work
from sage_grpo.training.trainer import Trainer


def slowly(videos, prompts):
    time.sleep(0.3 * launched_rank())
    return brightness(videos, prompts)


def main():
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    counted, updating = {"outside": 0, "in updates": 0}, [False]
    inner, update = Processes.everyone, core.update

    def everyone(self, x):
        assert x.numel() == 4
        counted["in updates" if updating[0] else "outside"] += 1
        return inner(self, x)

    def updates(*inputs, **settings):
        updating[0] = True
        result = update(*inputs, **settings)
        updating[0] = False
        return result

    Processes.everyone, core.update = everyone, updates
    trainer = Trainer(
        rewards=[slowly],
        config=recipe(folder, "shapes-full", folder / "run", 3, {}),
        prompts=["a red circle moving left", "a blue square moving up", "a cat"],
    )
    trainer.work = lambda: Work(1e9, 1e12)
    trainer.train()
    if trainer.main:
        (folder / "messages.json").write_text(json.dumps(counted))
    leave()


if __name__ == "__main__":
    main()
