"""Running an experiment on this machine. A later call continues where an earlier call stopped."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from queue import SimpleQueue
from threading import Event

from sage_grpo.config import ConfigError, RecipeConfig
from sage_grpo.distributed.device import HOST, choose_device
from sage_grpo.distributed.launch import launch
from sage_grpo.paper.commands import Planned
from sage_grpo.progress import Progress, no_progress
from sage_grpo.runs.folder import RunFolder
from sage_grpo.training.trackers import read_metrics
from sage_grpo.tune.tune import shared_devices

COMMAND = "sage_grpo"
NOTHING: Mapping[str, str] = {}


class Stopped(Exception):
    """Raised to end a training run early because the experiment ends; the run saves first."""


def devices_of(recipe: RecipeConfig, workers: int) -> list[dict[str, str]]:
    """Return the environment variables of each worker, which give it GPUs that no other worker uses.

    Raises:
        ConfigError: If this machine has too few GPUs.
    """
    count = recipe.parallel.processes
    if count > 1 and recipe.tuning.device == "auto" and choose_device() == HOST:
        raise ConfigError(
            f"this recipe needs {count} GPUs and this machine has none; start the printed lines on your cluster "
            "(--launcher slurm), or use a recipe of one process such as lab-paper"
        )
    return shared_devices(workers, recipe)


def is_done(recipe: RecipeConfig) -> bool:
    """Return whether the run with this recipe has reached its last iteration and saved."""
    files = RunFolder(Path(recipe.run.out))
    return files.end.exists() and files.log.exists() and len(read_metrics(files.log)) >= recipe.run.iterations


def run_experiment(
    planned: Planned, workers: int = 1, progress: Progress = no_progress, say: Callable[[str], None] = print
) -> None:
    """Train the runs that are not done yet, `workers` at a time, then run the experiment's finishing commands.

    What runs and commands print goes to log files in their folders.

    Raises:
        ProcessFailure: If a run fails. The other active runs save first.
    """
    slots: SimpleQueue[dict[str, str]] = SimpleQueue()
    for environment in devices_of(planned.place.recipe, workers):
        slots.put(environment)
    stop = Event()

    def look() -> None:
        if stop.is_set():
            raise Stopped

    def train(number: int) -> None:
        environment = slots.get()
        try:
            if not stop.is_set():
                recipe = planned.recipes[number]
                _start(planned.trainings[number], Path(recipe.run.out), look, recipe.parallel.processes, environment)
        finally:
            slots.put(environment)

    total = len(planned.runs)
    with progress("training runs") as emit, ThreadPoolExecutor(workers) as pool:
        waiting = {pool.submit(train, i) for i, recipe in enumerate(planned.recipes) if not is_done(recipe)}
        try:
            while waiting:
                emit(total - len(waiting), total, f"in {planned.place.out}")
                ended, waiting = wait(waiting, timeout=1.0, return_when=FIRST_COMPLETED)
                for future in ended:
                    future.result()
        except BaseException:
            stop.set()
            raise
    for number, arguments in enumerate(planned.finish):
        say(f"sage-grpo {arguments[0]}, with its log in {planned.place.out}/finish-{number}")
        _start(arguments, Path(planned.place.out) / f"finish-{number}", look)


def _start(
    arguments: Sequence[str],
    folder: Path,
    look: Callable[[], None],
    processes: int = 1,
    environment: Mapping[str, str] = NOTHING,
) -> None:
    """Run one command of the package in processes of its own, with their log in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    launch(processes, COMMAND, arguments, folder, look, environment={"COLUMNS": "120", **environment})
