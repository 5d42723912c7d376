"""From a recipe to objects: the only place that knows which names stand for what."""

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, cast

import torch

from sage_grpo.config import ConfigError, OptimizerConfig, RecipeConfig
from sage_grpo.core.protocols import PromptSource, Reward, VideoModel
from sage_grpo.data.prompts import open_prompts
from sage_grpo.rewards.function import CompositeReward, FunctionReward

MODELS = {"shapes": "sage_grpo.models.shapes:ShapesModel.from_pretrained"}
REWARDS = {"shapes": "sage_grpo.rewards.shapes:ShapesReward"}


def resolve(name: str, known: dict[str, str], kind: str) -> Any:
    """A built-in name, or `package.module:attribute` of an installed package."""
    target = known.get(name, name)
    module, sign, attribute = target.partition(":")
    if not sign:
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
        raise ConfigError(f"{kind} {name!r} is not known; {hint} Your own: package.module:factory")
    try:
        found: Any = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{kind} {name!r} cannot be imported: {error}") from error
    return found


def build_model(config: RecipeConfig) -> VideoModel:
    factory = resolve(config.model.type, MODELS, "model")
    model: VideoModel = factory(config.model.path, **config.model.options)
    return model


def as_reward(reward: Reward | Callable[..., Any]) -> Reward:
    return cast(Reward, reward) if hasattr(reward, "score") else FunctionReward(reward)


def build_rewards(config: RecipeConfig) -> tuple[Reward, tuple[float, ...]]:
    """All rewards of the recipe as one, with a weight for each of its scores."""
    if not config.rewards:
        raise ConfigError(f"rewards: none is given; a recipe needs at least one (built in: {', '.join(REWARDS)})")
    parts, weights = [], []
    for entry in config.rewards:
        found = resolve(entry.type, REWARDS, "reward")
        part = as_reward(found(**entry.options) if isinstance(found, type) or entry.options else found)
        unknown = set(entry.weights) - set(part.names)
        if unknown:
            raise ConfigError(
                f"rewards: {entry.type} has the scores {', '.join(part.names)}, not {sorted(unknown)[0]!r}"
            )
        parts.append(part)
        weights += [entry.weights.get(name, 1.0) for name in part.names]
    return CompositeReward(parts), tuple(weights)


def build_prompts(config: RecipeConfig, source: Any = None) -> PromptSource:
    """From what was passed, the recipe's file, or the model's own list."""
    chosen = source if source is not None else config.prompts.path
    if callable(chosen):
        return chosen  # type: ignore[no-any-return]
    if chosen is None:
        if config.model.type != "shapes":
            raise ConfigError("prompts.path: none is given; a txt, jsonl, csv or parquet file is needed")
        from sage_grpo.worlds.shapes import all_prompts  # noqa: PLC0415 - only the lab needs its world

        chosen = all_prompts()
    return open_prompts(chosen, seed=config.seed, shuffle=config.prompts.shuffle, column=config.prompts.column)


def build_optimizer(parameters: Sequence[torch.nn.Parameter], config: OptimizerConfig) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay)
