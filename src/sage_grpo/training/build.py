"""Functions that check the names in a recipe and build its objects: model, rewards, monitors and prompts."""

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from sage_grpo import registry
from sage_grpo.config import ConfigError, ModelConfig, RecipeConfig, RewardConfig
from sage_grpo.core.anchor import ANCHOR
from sage_grpo.core.comm import SequenceParallel
from sage_grpo.core.objectives import OLD, chosen_objective
from sage_grpo.core.protocols import PromptSource
from sage_grpo.core.reward import Reward
from sage_grpo.core.video_model import VideoModel
from sage_grpo.data.prompts import PromptFunction, Prompts, open_prompts
from sage_grpo.distributed.device import HOST, choose_device
from sage_grpo.distributed.processes import Processes
from sage_grpo.distributed.shard import fill, shard
from sage_grpo.math.kernels import KERNELS
from sage_grpo.registry import resolve_model, resolve_reward
from sage_grpo.rewards.function import CompositeReward, FunctionReward
from sage_grpo.runs.folder import RunFolder
from sage_grpo.suggest import did_you_mean
from sage_grpo.training.callbacks import EMA
from sage_grpo.training.trackers import tracker_names
from sage_grpo.weights.prepare import initial_weights, prepare, reserve_copies, storage_dtypes


def refuse_unknown(names: Iterable[str], known: set[str], sentence: str) -> None:
    """Raise a ConfigError for the first of `names` that is not in `known`.

    The message is `sentence` with this name in place of its `{}`, and a suggestion of a known name.
    """
    for name in names:
        if name not in known:
            raise ConfigError(f"{sentence.format(name)}; {did_you_mean(name, known)}")


def check_names(config: RecipeConfig, *, model: bool = True, rewards: bool = True) -> None:
    """Raise a ConfigError if a recipe names something unknown or has no rewards. No weights are loaded for this.

    Built-in models and rewards are not imported, because their libraries may be on another machine. Set `model` or
    `rewards` to False if the run uses objects of the caller instead of the model or rewards that the recipe names.
    """
    registry.load_plugins(config, trackers=True)
    refuse_unknown([config.sampling.kernel], set(KERNELS), "sampling.kernel: there is no kernel {!r}")
    chosen_objective(config, config.parallel.replicas)
    refuse_unknown(config.run.trackers, set(tracker_names()), "run.trackers: there is no tracker {!r}")
    if model and config.model.type not in registry.models():
        resolve_model(config.model.type)
    if rewards:
        _refuse_no_rewards(config)
    for entry in (*(config.rewards if rewards else ()), *config.monitors):
        if entry.type not in registry.rewards():
            resolve_reward(entry.type)


def model_settings(config: ModelConfig) -> dict[str, Any]:
    """Return the model's settings and options that the recipe sets, by name, without the settings that are None."""
    settings = config.model_dump(exclude={"type", "path", "options"}, exclude_none=True)
    return settings | dict(config.options)


def build_model(
    config: RecipeConfig, processes: Processes | None = None, *, without_encoders: bool = False
) -> VideoModel:
    """Build the recipe's model in eight steps, from loading its weights to sharding them, and return the model.

    Args:
        config: The recipe.
        processes: The processes that share the run; None for a single process.
        without_encoders: Leave encoders on disk until a prompt has no stored embeddings, if the model supports that.
    """
    registry.load_plugins(config)
    model = load_model(config, processes, without_encoders=without_encoders)  # 1. load
    device = processes.device if processes else choose_device(config.tuning.device)
    model.place(device, offload_device=HOST if config.tuning.offload else None)  # 2. place
    prepare(model, config.tuning, config.seed)  # 3. freeze or adapt, 4. precision, 5. memory, 6. compile
    if processes:
        share(model, config, processes)  # 7. sequence parallel, 8. shard
    return model


def load_model(config: RecipeConfig, processes: Processes | None, *, without_encoders: bool) -> VideoModel:
    """Return the recipe's model, loaded from its checkpoint.

    With several processes, a model that supports it is returned with empty weights. Each process reads its shards of
    the weights later, in `share`.
    """
    factory = resolve_model(config.model.type)
    settings, load = model_settings(config.model), getattr(factory, "from_pretrained", factory)
    known = accepted(factory, load)
    refuse_unknown(settings, known, f"model.{{}}: {config.model.type} has no such setting")
    for name, value in (
        *storage_dtypes(config.tuning).items(),
        ("conditions", config.tuning.conditions or str(RunFolder(Path(config.run.out)).conditions)),
    ):
        if name in known:
            settings[name] = value
    if "conditions" in known and config.model.path is None:
        raise ConfigError(f"model.path: {config.model.type} needs a checkpoint, a folder or a hub name")
    if processes and "empty" in known:
        settings["empty"] = True  # no process ever holds the weights whole
    if without_encoders and "without_encoders" in known:
        settings["without_encoders"] = True
    return as_model(load(config.model.path, **settings))


def as_model(model: Any) -> VideoModel:
    if not isinstance(model, VideoModel):
        kind = type(model).__name__
        raise ConfigError(
            f"model: {kind} is no video model; write class {kind}(VideoModel), after `from sage_grpo import VideoModel`"
        )
    return model


def outline_model(config: RecipeConfig) -> VideoModel:
    """Return the recipe's model at full size, prepared for training but not sharded, to plan memory and time.

    A resizable model, such as those of diffusers, is returned without weights. Any other model is loaded with its
    weights.
    """
    untouched = {"compile": None, "attention": None}  # they need the device, and change no size
    config = config.model_copy(update={"tuning": config.tuning.model_copy(update=untouched)})
    factory = resolve_model(config.model.type)
    if resizable(factory):
        settings = {name: value for name, value in model_settings(config.model).items() if name != "revision"}
        model: VideoModel = factory.outline(config.model.path, **storage_dtypes(config.tuning), **settings)
        prepare(model, config.tuning, config.seed)
    else:
        model = build_model(config)
    reserve_copies(model, copies_of(config))
    return model


def share(model: VideoModel, config: RecipeConfig, processes: Processes) -> None:
    """Prepare a model for several processes, in place.

    Each video is divided among the processes that share it. The weights are sharded among all processes, and so are
    the copies of the weights that the run will keep. Empty weights are read from the checkpoint.
    """
    if processes.sp:
        share_video(model, config, processes.sp)
    reserve_copies(model, copies_of(config))
    shard(model, processes.weights_mesh, model.autocast_dtype)
    if any(p.is_meta for p in model.module.parameters()):
        adapters = partial(initial_weights, seed=config.seed)
        fill(model, Path(model.folder or ""), processes.device, adapters)


def share_video(model: VideoModel, config: RecipeConfig, sp: SequenceParallel) -> None:
    """Make the model divide the tokens and attention heads of each video among the processes that share the video.

    Raises:
        ConfigError: The recipe wants ring attention on CPUs, which have none.
    """
    if config.parallel.ring > 1 and sp.device == HOST:
        raise ConfigError("parallel.ring: attention on the CPU cannot go round a ring; use parallel.ring=1")
    model.share_sequence(sp)


def copies_of(config: RecipeConfig) -> list[str]:
    """Return the names of the copies of trained weights that a run keeps: any of anchor, old policy and average."""
    copies = [ANCHOR] if config.kl.anchor != "none" else []
    copies += [OLD] if chosen_objective(config).averages else []
    return [*copies, EMA] if config.optimizer.ema else copies


def resizable(factory: Any) -> bool:
    """Return whether `factory` is a model class that offers a model of toy size, and of full size without weights."""
    return isinstance(factory, type) and issubclass(factory, VideoModel) and factory.resizable


def accepted(factory: Any, load: Any) -> set[str]:
    """Return the names of the settings, except the path, that a model's loader and constructors accept."""
    return set(parameters(factory, load)) - {"pipe", "path", "directory"}


def parameters(factory: Any, load: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters that the function `load` accepts, by name.

    If `load` has `**keywords` and `factory` is a class, the parameters of the constructors of `factory` and its base
    classes are included. If several of these have a parameter of one name, that of `load` is returned, else that of the
    class nearest to `factory`.
    """
    available = dict(inspect.signature(load).parameters)
    if any(p.kind is p.VAR_KEYWORD for p in available.values()) and isinstance(factory, type):
        for parent in factory.__mro__:
            own = vars(parent).get("__init__")
            available = (dict(inspect.signature(own).parameters) if own else {}) | available
    plain = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {name: p for name, p in available.items() if p.kind in plain and name != "self"}


def as_reward(reward: Reward | Callable[..., Any]) -> Reward:
    if isinstance(reward, Reward):
        return reward
    if not callable(reward):
        raise ConfigError(
            f"rewards: {type(reward).__name__} is neither a reward nor a function; write class "
            f"{type(reward).__name__}(Reward), after `from sage_grpo import Reward`"
        )
    return FunctionReward(reward)


def _refuse_no_rewards(config: RecipeConfig) -> None:
    if not config.rewards:
        raise ConfigError(
            f"rewards: none is given; a recipe needs at least one (built in: {', '.join(registry.rewards())})"
        )


def build_rewards(config: RecipeConfig) -> tuple[Reward, tuple[float, ...]]:
    """Return all rewards of the recipe as one reward, and one weight per score, in the order of the reward's `names`.

    Raises:
        ConfigError: The recipe has no rewards, or one that may only be a monitor.
    """
    _refuse_no_rewards(config)
    for entry in config.rewards:
        reward = resolve_reward(entry.type)
        if isinstance(reward, type) and issubclass(reward, Reward) and reward.not_trainable_because:
            raise ConfigError(
                f"rewards: {entry.type} cannot be trained on: {reward.not_trainable_because}; put it under monitors"
            )
    parts = [build_reward(entry) for entry in config.rewards]
    weights = [w for entry, part in zip(config.rewards, parts, strict=True) for w in reward_weights(entry, part)]
    return CompositeReward(parts), tuple(weights)


def build_reward(entry: RewardConfig) -> Reward:
    factory = find_reward(entry)
    return as_reward(factory(**entry.options) if _makes_reward(factory) else factory)


def _makes_reward(factory: Any) -> bool:
    return isinstance(factory, type) or registry.makes(factory, Reward)


def find_reward(entry: RewardConfig) -> Any:
    """Return the class or function that a reward entry names, without calling it.

    Raises:
        ConfigError: The name is unknown, or the class or function does not take the options of the entry.
    """
    factory = resolve_reward(entry.type)
    if entry.type in registry.rewards():  # those of outside packages know their own options
        refuse_unknown(
            entry.options,
            set(parameters(factory, factory)),
            f"rewards: {entry.type} has no option {{!r}}",
        )
    if _makes_reward(factory):
        try:
            inspect.signature(factory).bind(**entry.options)
        except TypeError as error:
            raise ConfigError(f"rewards.options: {entry.type}: {error}") from error
    elif entry.options:
        raise ConfigError(
            f"rewards.options: {entry.type} takes none: options are for a class, or for a function that makes a reward "
            "and ends its first line with `-> Reward`"
        )
    return factory


def reward_weights(entry: RewardConfig, reward: Reward) -> list[float]:
    """Return one weight per score of a reward, in the order of `reward.names`. A score without a weight gets 1."""
    weights = entry.weights
    if isinstance(weights, str):
        if weights not in reward.presets:
            known = ", ".join(reward.presets) or "none"
            raise ConfigError(
                f"rewards: {entry.type} has no preset {weights!r}; it has {known}. Or give weights by name"
            )
        weights = dict(reward.presets[weights])
    unknown = set(weights) - set(reward.names)
    if unknown:
        raise ConfigError(f"rewards: {entry.type} has the scores {', '.join(reward.names)}, not {sorted(unknown)[0]!r}")
    return [weights.get(name, 1.0) for name in reward.names]


def build_monitors(config: RecipeConfig) -> Reward | None:
    """Return the recipe's monitors as one reward, or None if the recipe has no monitors.

    Monitors score the sample videos; nothing is trained on their scores.
    """
    parts = [build_reward(entry) for entry in config.monitors]
    for entry in config.monitors:
        if entry.weights:
            raise ConfigError(
                f"monitors: {entry.type} is not trained on, so its scores have no weights; leave them out"
            )
    return CompositeReward(parts) if parts else None


def model_class(name: str) -> type[VideoModel]:
    """Return the model class that has this name in recipes, or `VideoModel` if the name belongs to a function."""
    factory = resolve_model(name)
    known = isinstance(factory, type) and issubclass(factory, VideoModel)
    return factory if known else VideoModel


def own_prompts(name: str) -> list[str]:
    """Return all prompts that a model of the laboratory understands, by the model's name in recipes.

    The list is empty for a model that takes any text. No weights are loaded.
    """
    return list(model_class(name).own_prompts())


def build_prompts(config: RecipeConfig, source: Any = None) -> PromptSource:
    """Return the prompts to train on: from `source` if given, else from the recipe's file, else the model's own.

    `source` may be a path, a list of texts, a `datasets` object, a function or `Prompts`.
    """
    chosen = source if source is not None else config.prompts.path
    if isinstance(chosen, Prompts):
        return chosen
    if callable(chosen):
        return PromptFunction(chosen)
    if chosen is None:
        chosen = list(model_class(config.model.type).training_prompts())
        if not chosen:
            raise ConfigError("prompts.path: none is given; a txt, jsonl, csv or parquet file is needed")
    return open_prompts(chosen, seed=config.seed, shuffle=config.prompts.shuffle, column=config.prompts.column)
