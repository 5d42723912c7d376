"""One process of a rehearsal: an iteration, a resume, and a second iteration.

A launcher starts it with `python -m` if there are several processes.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from sage_grpo.config import ConfigError, RecipeConfig, load_recipe
from sage_grpo.core.video_model import whole
from sage_grpo.distributed.launch import recording_failures
from sage_grpo.distributed.processes import launched, launched_rank, leave
from sage_grpo.files import atomic_write
from sage_grpo.models.library_logging import quiet_libraries
from sage_grpo.preflight.rehearsal.toy import Rehearsal, find_prompts, find_rewards
from sage_grpo.registry import load_trusted_recipe
from sage_grpo.training.trainer import Trainer

ORIGINAL, SMALL, RECORD, PROGRESS = "original.yaml", "toy.yaml", "record.json", "progress.txt"


def run_iterations(
    config: RecipeConfig,
    small: RecipeConfig,
    folder: Path,
    record: Rehearsal,
    emit: Callable[[str], None],
    console: Console,
) -> None:
    """Train two iterations with a resume between them. Every process of a rehearsal calls this function.

    `config` is the real recipe and `small` the one at toy size. Facts are written into `record`. A rehearsal whose
    updates changed no weight is refused.
    """
    prompts = find_prompts(config, folder, record)
    rewards, weights = find_rewards(config, record)
    if small.policy.reward_weights is None:
        small = small.model_copy(update={"policy": small.policy.model_copy(update={"reward_weights": weights})})

    def trainer(iterations: int) -> Trainer:
        run = small.run.model_copy(update={"iterations": iterations})
        return Trainer(config=small.model_copy(update={"run": run}), rewards=rewards, prompts=prompts, console=console)

    emit("first iteration: encode, rollout, decode, rewards, update, anchor, checkpoint")
    with record.phase("load, encode, rollout, decode, rewards, update, anchor, checkpoint"):
        first = trainer(1)
        start = {name: p.detach().clone() for name, p in first.model.module.named_parameters() if p.requires_grad}
        first.train()
    del first

    emit("resume and second iteration")
    with record.phase("resume, second iteration"):
        second = trainer(2)
        result = second.train()
    live = dict(second.model.module.named_parameters())
    moved = [name for name, before in start.items() if float(whole((live[name].detach() - before).norm())) > 0]
    if not moved:
        raise ConfigError(
            "the updates changed no weight: all rewards of a group are equal, or optimizer.lr is too small"
        )
    record.facts |= {
        "processes": small.parallel.processes,
        "trained parameters": sum(v.numel() for v in start.values()),
        "changed tensors": len(moved),
        "of tensors": len(start),
        "updates": second.loop.updates,
        "iterations": result.iterations,
        "alarms": len(result.alarms),
    }


def main() -> None:
    """Run one process of a rehearsal with several processes.

    The command line has the folder of the recipes to run. The first process writes the record of the rehearsal into it.
    """
    folder, rank = Path(sys.argv[1]), launched_rank()
    quiet_libraries()
    record = Rehearsal("")

    def emit(text: str) -> None:
        if rank == 0:
            atomic_write(folder / PROGRESS, text.encode())

    with recording_failures(folder, rank, launched()):
        config, small = load_trusted_recipe(folder / ORIGINAL), load_recipe(folder / SMALL)
        run_iterations(config, small, folder, record, emit, Console(quiet=True))
        if rank == 0:
            atomic_write(folder / RECORD, json.dumps(asdict(record)).encode())
    leave()


if __name__ == "__main__":
    main()
