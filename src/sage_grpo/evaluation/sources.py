"""The sources to compare: named runs, checkpoints and untrained models, each with a hash of what makes its videos."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from sage_grpo import __version__
from sage_grpo.config import ConfigError, RecipeConfig, load_recipe
from sage_grpo.distributed.checkpoint import MANIFEST
from sage_grpo.distributed.storage import Storage
from sage_grpo.inference.reopen import find_run, is_of_run, refuse_code
from sage_grpo.registry import load_plugins
from sage_grpo.runs.folder import CHECKPOINTS, STEP, RunFolder, is_run

BASE, UNTRAINED = "base", "untrained"
NAME = re.compile(r"[\w.-]*\w[\w.-]*")  # fit for a file's name


@dataclass(frozen=True)
class Candidate:
    """A source to compare, of which nothing is in memory yet.

    `path` is the checkpoint or recipe that `open_source` opens. `identity` is a hash of all that makes the videos of
    the source: model, weights and sampling.
    """

    name: str
    path: Path
    config: RecipeConfig
    checkpoint: str  # its name, or that the model is untrained
    identity: str

    @property
    def size(self) -> tuple[int | None, ...]:
        model = self.config.model
        return model.frames, model.height, model.width


def digest(content: Any) -> str:
    return sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def find_sources(
    texts: Sequence[str], *, base: bool, average: bool, overrides: Sequence[str] = (), trust_code: bool = False
) -> list[Candidate]:
    """Return the sources to compare. The source named `base`, if any, comes first.

    Args:
        texts: Each source as `name=path`, or as a path alone. A path is a run, a checkpoint or a recipe.
        base: Whether to add the untrained model of the first source as `base`, if no source has this name.
        average: Whether videos are made with the averaged weights of a checkpoint, if it has any.
        overrides: Settings that replace those of the recipes.
        trust_code: Whether a recipe in a run folder may name code that is not built in.

    Raises:
        ConfigError: Two sources have one name, a path is no source, or sizes of videos differ.
    """
    pairs = [_split(text) for text in texts]
    _refuse_same_names(pairs)
    if base and BASE not in (name for name, _ in pairs):
        path = pairs[0][1]
        untrained = find_run(path, trust_code=True).files.recipe if is_run(path) else path
        pairs = [(BASE, untrained), *(pair for pair in pairs if pair[1] != untrained)]
    pairs.sort(key=lambda pair: pair[0] != BASE)
    candidates = [_identify(name, path, average, overrides) for name, path in pairs]
    for candidate in candidates:
        if is_of_run(candidate.path) and not trust_code:
            refuse_code(candidate.config, candidate.path, (*candidate.config.rewards, *candidate.config.monitors))
    for candidate in candidates:
        load_plugins(candidate.config)
    _refuse_mixtures(candidates)
    return candidates


def _split(text: str) -> tuple[str, Path]:
    name, sign, rest = text.partition("=")
    if sign and NAME.fullmatch(name):
        if not rest:
            raise ConfigError(f"{text!r} names no path; write such as paper=runs/paper")
        return name, Path(rest)
    path = Path(text)
    whole = path.resolve()
    parts = (whole.parent.parent.name, whole.name) if path.name.startswith(STEP) else (whole.stem,)
    return re.sub(r"[^\w.-]", "-", "-".join(parts)) or "model", path


def _identify(name: str, path: Path, average: bool, overrides: Sequence[str]) -> Candidate:
    if path.is_dir() and not is_run(path):
        recipe = RunFolder(path).recipe
        raise ConfigError(f"{path} is not a run: there is no {recipe}; give a run, checkpoint or recipe")
    if is_run(path):
        run = find_run(path, trust_code=True)  # nothing is imported here
        step = run.step or run.newest()
        try:
            written = Storage(run.root).read(f"{step}/{MANIFEST}")  # it has the hash of every file
        except OSError as error:
            raise ConfigError(f"{run.root}/{step} is not a whole checkpoint: {error}") from error
        path, weights = run.files.path / CHECKPOINTS / step, [sha256(written).hexdigest(), average]
        config = load_recipe(run.files.recipe, overrides)
    else:
        config, step = load_recipe(path, overrides), UNTRAINED
        weights = _base_weights(config.model.path)
    tuning, sampling = config.tuning, config.sampling
    # An untrained model has no adapters yet that could change its videos.
    adapters = [tuning.mode, tuning.rank, tuning.alpha, tuning.targets] if step != UNTRAINED else []
    model = config.model.model_dump(mode="json", exclude={"guidance_gradient"})
    content = [model, adapters, tuning.precision, tuning.vae_tiling, sampling.steps, sampling.shift, weights]
    content += [sampling.order] if sampling.order > 1 else []
    content += [tuning.min_sigma] if tuning.min_sigma and step != UNTRAINED else []
    return Candidate(name, path, config, step, digest(content))


def _base_weights(path: str | None) -> list[Any]:
    """Return what identifies base weights: the names, sizes and times of the files, if `path` is a folder.

    For the checkpoint that ships with the package (`path` None) it is the version of the package. For a name on the hub
    the list is empty: the name and the revision that the recipe pins are hashed with the model.
    """
    if path is None:
        return [__version__]  # the checkpoint that ships
    folder = Path(path).expanduser()
    files = sorted(file for file in folder.rglob("*") if file.is_file()) if folder.is_dir() else []
    return [[str(f.relative_to(folder)), f.stat().st_size, f.stat().st_mtime_ns] for f in files]


def _refuse_same_names(pairs: Sequence[tuple[str, Path]]) -> None:
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            same = ", ".join(str(path) for other, path in pairs if other == name)
            raise ConfigError(f"two sources are named {name!r} ({same}); name each, such as {name}-2=PATH")


def _refuse_mixtures(candidates: Sequence[Candidate]) -> None:
    for candidate in candidates:
        name, first = candidate.name, candidates[0]
        if candidate.size != first.size:
            raise ConfigError(
                f"{name} makes videos of {_size(candidate)} and {first.name} of {_size(first)} (frames, height, "
                "width of the recipe); videos of different size are not compared: make model.frames, height and width "
                "the same"
            )


def _size(candidate: Candidate) -> str:
    return " × ".join("its own" if side is None else str(side) for side in candidate.size)


def differences_in_sampling(candidates: Sequence[Candidate]) -> str | None:
    """Return a sentence that says how each source is sampled, or None if all are sampled in the same way."""
    ways: dict[str, list[str]] = {}
    for candidate in candidates:
        sampling = candidate.config.sampling
        second = " of second order" if sampling.order == 2 else ""
        ways.setdefault(f"{sampling.steps} steps{second}, shift {sampling.shift:g}", []).append(candidate.name)
    if len(ways) == 1:
        return None
    return "Sampled in different ways: " + "; ".join(f"{', '.join(names)} in {way}" for way, names in ways.items())
