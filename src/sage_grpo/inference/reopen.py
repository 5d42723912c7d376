"""A run folder opened again: its recipe, its model and the weights that it trained."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from sage_grpo.config import ConfigError, RecipeConfig, load_recipe
from sage_grpo.core.protocols import VideoModel, WeightsBank
from sage_grpo.distributed.checkpoint import checkpoints, load_checkpoint, load_newest
from sage_grpo.runs.folder import RunFolder, split
from sage_grpo.training import build
from sage_grpo.training.callbacks import EMA
from sage_grpo.weights.prepare import make_bank


@dataclass(frozen=True)
class OpenedRun:
    """A run whose model is ready for use."""

    config: RecipeConfig
    model: VideoModel
    bank: WeightsBank
    """Copies of the weights that the run kept."""
    iteration: int
    checkpoint: str
    averaged: bool
    """The averaged weights are in place, not the last ones."""


@dataclass(frozen=True)
class RunLocation:
    """Where a run and its checkpoints lie."""

    files: RunFolder
    config: RecipeConfig
    root: str  # of the checkpoints
    step: str | None  # the checkpoint that was named; none: the newest

    def newest(self) -> str:
        """The name of the newest checkpoint; whether it is whole is seen when it is read."""
        known = checkpoints(self.root)
        if not known:
            raise _none_yet(self)
        return known[-1]


def _none_yet(place: RunLocation) -> ConfigError:
    often = place.config.run.save_every
    return ConfigError(f"{place.files.path} has no checkpoint yet; it is written every {often} iterations")


def find_run(path: Path | str, overrides: Sequence[str] = ()) -> RunLocation:
    """`path` is a run folder, or one of its checkpoints. Nothing is loaded yet."""
    files, step = split(Path(path))
    if not files.exists:
        hint = "give a folder that `sage-grpo train` wrote"
        raise ConfigError(f"{path} is not a run: there is no {files.recipe}; {hint}")
    config = load_recipe(files.recipe, overrides)
    root = files.checkpoints(config)
    if step is not None and step not in checkpoints(root):
        known = ", ".join(checkpoints(root)) or "none"
        raise ConfigError(f"{path} is not there; checkpoints of this run: {known}")
    return RunLocation(files, config, root, step)


def open_run(path: Path | str, *, average: bool = True, overrides: Sequence[str] = ()) -> OpenedRun:
    """The recipe of a run folder (or of one of its checkpoints), with the model that it trained.

    Averaged weights are used where the run kept them. `overrides` are of its recipe, such as tuning.device=cpu.
    """
    place = find_run(path, overrides)
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
