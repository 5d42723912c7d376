"""What a run writes into its folder about itself, and the lock that keeps other runs out of the folder."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict

from sage_grpo.config import ConfigError, RecipeConfig, dump_recipe
from sage_grpo.core.loop import Loop
from sage_grpo.distributed.gpu_check import Speed
from sage_grpo.distributed.processes import Processes
from sage_grpo.files import atomic_write, sweep, write_json
from sage_grpo.runs.folder import ENVIRONMENT, RECIPE, RunFolder
from sage_grpo.runs.lock import take
from sage_grpo.runs.redact import clean_settings
from sage_grpo.training.environment import describe_environment


@contextmanager
def alone(files: RunFolder, processes: Processes | None) -> Iterator[None]:
    """Keep other runs out of the folder inside the block. The first process takes the lock and tells the others.

    Before it does, while none of them can write, it removes the unfinished files of earlier parts that were killed.
    """
    main = processes is None or processes.main
    lock = take(files.lock) if main else None
    if lock is not None:
        with suppress(OSError):  # what is left harms nobody, and the other processes wait for the news below
            samples = (sample.path for sample in files.samples().values())
            for folder in (files.path, *samples, *files.hangs.glob("*")):
                sweep(folder)
    busy = main and lock is None
    if processes:
        busy = any(processes.everybody(busy))
    try:
        if busy:
            raise ConfigError(f"another run is writing into {files.path}; wait for it, or use another run.out")
        yield
    finally:
        if lock is not None:
            os.close(lock)


def write_start(files: RunFolder, config: RecipeConfig, speeds: Sequence[Speed] = (), *, resumed: bool) -> None:
    """Write the recipe, the environment and the speeds of the devices into the folder, once per start or resume.

    What the folder says of an earlier end is removed, because the run has not ended.
    """
    files.path.mkdir(parents=True, exist_ok=True)
    number = len(files.parts(ENVIRONMENT)) if resumed else 0
    values = config.model_dump(mode="json")
    secret = clean_settings(values) != values  # a recipe must be kept as it is, but need not be read by everyone
    atomic_write(files.part(RECIPE, number), dump_recipe(config).encode(), private=secret)
    write_json(files.part(ENVIRONMENT, number), describe_environment(), private=True)
    files.end.unlink(missing_ok=True)
    if speeds:
        write_json(files.speeds, [asdict(speed) for speed in speeds])


def write_end(files: RunFolder, loop: Loop, error: str | None = None) -> None:
    """Write into the folder how the run ended. A run whose folder does not say so was killed or still runs."""
    facts = {"iteration": loop.iteration, "stop_reason": loop.stop_reason, "error": error}
    with suppress(OSError):  # a full disk is reported by what filled it
        write_json(files.end, facts | {"time": time.time()})
