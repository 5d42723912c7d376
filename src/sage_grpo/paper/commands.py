"""Command lines of an experiment: for this machine, for nodes under torchrun, or for SLURM."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sage_grpo.config import RecipeConfig, load_recipe
from sage_grpo.paper.experiments import ITERATIONS, Commands, Experiment, Place, Run

Launcher = Literal["torchrun", "slurm"]
NODE = 8  # GPUs of one node
RENDEZVOUS = ["--rdzv-backend=c10d", "--rdzv-endpoint=$HEAD:29500"]
SCRIPT = "examples/slurm/train.sbatch"


@dataclass(frozen=True)
class Planned:
    """The commands of an experiment with one recipe.

    `trainings` has the arguments of `sage-grpo train` for each run, and `finish` the commands that follow all runs.
    """

    experiment: Experiment
    place: Place
    runs: list[Run]
    trainings: Commands
    finish: Commands
    recipes: list[RecipeConfig]


def plan_commands(
    experiment: Experiment,
    base: str,
    out: str,
    overrides: Sequence[str] = (),
    iterations: int | None = None,
    limit: int | None = None,
) -> Planned:
    """Return all commands of an experiment, each checked against the schema of recipes.

    Args:
        experiment: The table or figure.
        base: Name or path of the recipe.
        out: Folder of all results.
        overrides: Settings that replace those of the recipe in every run.
        iterations: Length of every run; None means that of the recipe, and at most 100.
        limit: Number of prompts, the first ones, that an evaluation uses; None means all.

    Raises:
        ConfigError: If the recipe does not exist, or a setting does not fit it.
    """
    recipe = load_recipe(base, list(overrides))
    count = iterations or min(recipe.run.iterations, ITERATIONS)
    place, runs = Place(base, recipe, out, limit), experiment.runs(recipe)
    trainings, recipes = [], []
    for run in runs:
        settings = [*overrides, *run.overrides, f"run.iterations={count}", f"run.out={place.folder(run)}"]
        trainings.append(["train", base, *settings])
        recipes.append(load_recipe(base, settings))
    return Planned(experiment, place, runs, trainings, experiment.finish(place, runs), recipes)


def training_line(arguments: Sequence[str], processes: int, launcher: Launcher) -> str:
    """Return the shell line that starts one training run on `processes` GPUs, eight per node."""
    nodes = -(-processes // NODE)
    if launcher == "slurm":
        per_node = [] if processes % NODE == 0 else [f"--gpus-per-node={processes}"]
        return quoted(["sbatch", f"--nodes={nodes}", *per_node, SCRIPT, *arguments[1:]])
    return quoted([*launch(processes), *arguments])


def launch(processes: int) -> list[str]:
    """Return the words of a shell line before `train`: `sage-grpo` for one process, else torchrun with options."""
    if processes == 1:
        return ["sage-grpo"]
    nodes = -(-processes // NODE)
    several = [f"--nnodes={nodes}", *RENDEZVOUS, "--max-restarts=100"] if nodes > 1 else []
    return ["torchrun", f"--nproc-per-node={min(processes, NODE)}", *several, "-m", "sage_grpo"]


def finishing_line(arguments: Sequence[str], processes: int) -> str:
    """Return the shell line of a command that follows the training runs.

    An evaluation shares its prompts among the GPUs of one node.
    """
    shared = arguments[0] == "eval" and processes > 1
    return quoted([*(launch(min(processes, NODE)) if shared else ["sage-grpo"]), *arguments])


def quoted(words: Sequence[str]) -> str:
    """Join words into a shell line, with quotes where needed; `$HEAD` stays a variable."""
    return " ".join(word if word.startswith("--rdzv-endpoint=$") else shlex.quote(word) for word in words)
