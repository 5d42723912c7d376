"""A run folder opened again: its recipe, its model and the weights that it trained."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from sage_grpo import registry
from sage_grpo.config import ConfigError, RecipeConfig, RewardConfig, load_recipe
from sage_grpo.core.protocols import WeightsBank
from sage_grpo.core.video_model import VideoModel
from sage_grpo.distributed.checkpoint import checkpoints, load_checkpoint, load_newest
from sage_grpo.runs.folder import RECIPE, RunFolder, is_run, split
from sage_grpo.training import build
from sage_grpo.training.callbacks import EMA
from sage_grpo.weights.prepare import make_bank


@dataclass(frozen=True)
class OpenedRun:
    """A run that was opened again, with its model ready for use."""

    config: RecipeConfig
    model: VideoModel
    bank: WeightsBank
    """The copies of the weights that the run kept, such as averages."""
    iteration: int
    checkpoint: str
    averaged: bool
    """Whether the model has the run's averaged weights, and not the weights of its last update."""


@dataclass(frozen=True)
class RunLocation:
    """The files and the recipe of a run, and the place of its checkpoints."""

    files: RunFolder
    config: RecipeConfig
    root: str  # of the checkpoints
    step: str | None  # the checkpoint that was named; none: the newest

    def newest(self) -> str:
        """Return the name of the newest checkpoint. Whether this checkpoint is complete is checked when it is read.

        Raises:
            ConfigError: The run has no checkpoint yet.
        """
        known = checkpoints(self.root)
        if not known:
            raise _none_yet(self)
        return known[-1]


def _none_yet(place: RunLocation) -> ConfigError:
    often = place.config.run.save_every
    return ConfigError(f"{place.files.path} has no checkpoint yet; it is written every {often} iterations")


KNOWN = {"model": registry.models, "reward": registry.rewards}
TOKEN = "token_variable"  # the option of a reward that says which environment variable is sent


def refuse_code(config: RecipeConfig, place: Path, rewards: Iterable[RewardConfig] = ()) -> None:
    """Refuse the recipe of a run if it names something that could run unknown code or send a secret.

    A run folder may come from others, and importing a module that its recipe names would run the code of this module.
    So its model and rewards must be built in or installed. `rewards` are those that the caller would build. They may
    not choose which environment variable is sent as their token. `place` is the path of the recipe, for the message.
    """
    strange = [f"module {module!r}" for module in config.run.imports]
    models, known = ({**own(), **registry.installed(kind)} for kind, own in KNOWN.items())
    strange += [] if config.model.type in models else [f"model {config.model.type!r}"]
    for entry in rewards:
        strange += [] if entry.type in known else [f"reward {entry.type!r}"]
        strange += [f"{TOKEN}={entry.options[TOKEN]!r} of {entry.type}"] if TOKEN in entry.options else []
    if strange:
        raise ConfigError(
            f"{place} names what could run code or send a secret: {', '.join(strange)}; if you know and trust it, "
            "give --trust-code (in Python, trust_code=True)"
        )


def is_of_run(path: Path) -> bool:
    """Return whether `path` is a run, a checkpoint or the recipe file of a run, and not a recipe of the user's own."""
    return is_run(path) or path.name == RECIPE


def find_run(path: Path | str, overrides: Sequence[str] = (), *, trust_code: bool = False) -> RunLocation:
    """Find a run and its checkpoints, without loading weights.

    Args:
        path: A run folder, or one of its checkpoints.
        overrides: Settings that replace those of the run's recipe.
        trust_code: Whether the recipe may name a model that is not built in.

    Raises:
        ConfigError: If `path` is not a run, the checkpoint does not exist, or the recipe names a model or code that is
            not trusted.
    """
    files, step = split(Path(path))
    if not files.exists:
        hint = "give a folder that `sage-grpo train` wrote"
        raise ConfigError(f"{path} is not a run: there is no {files.recipe}; {hint}")
    config = load_recipe(files.recipe, overrides)
    if not trust_code:
        refuse_code(config, files.recipe)
    root = files.checkpoints(config)
    if step is not None and step not in checkpoints(root):
        known = ", ".join(checkpoints(root)) or "none"
        raise ConfigError(f"{path} is not there; checkpoints of this run: {known}")
    return RunLocation(files, config, root, step)


def open_run(
    path: Path | str, *, average: bool = True, overrides: Sequence[str] = (), trust_code: bool = False
) -> OpenedRun:
    """Build the model of a run folder, or of one of its checkpoints, with the weights that the run trained.

    Args:
        path: A run folder, whose newest checkpoint is loaded, or one of its checkpoints.
        average: Whether averaged weights are used, if the run kept them.
        overrides: Settings that replace those of the run's recipe, such as tuning.device=cpu.
        trust_code: Whether the recipe may name a model that is not built in, whose code is then run.

    Examples:
        >>> from rich.console import Console
        >>> from sage_grpo import Trainer, load_recipe, open_run
        >>> small = ["policy.prompts_per_iteration=1", "policy.num_generations=4", "policy.batch_size=4"]
        >>> recipe = load_recipe("lab", [*small, "sampling.steps=4", "run.iterations=1", "run.out=runs/short"])
        >>> _ = Trainer(config=recipe, console=Console(quiet=True)).train()
        >>> open_run("runs/short").iteration
        1
    """
    place = find_run(path, overrides, trust_code=trust_code)
    config, step = place.config, place.step
    if step is None:
        newest = load_newest(place.root)
        if newest is None:
            raise _none_yet(place)
        step, state, _ = newest
    else:
        state = load_checkpoint(place.root, step)
    loop = state["loop"]
    model = build.build_model(config)
    targets = dict(model.module.named_parameters()) | dict(model.module.named_buffers())
    with torch.no_grad():
        for name, value in loop["model"].items():
            targets[name].copy_(value)
    bank = make_bank(model.module)
    bank.load_state_dict(loop["bank"])
    averaged = average and EMA in bank
    if averaged:
        bank.adopt(EMA)
    return OpenedRun(config, model, bank, loop["iteration"], step, averaged)
