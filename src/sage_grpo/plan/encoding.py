"""What it takes to encode the prompts of a run before its first iteration."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from sage_grpo.config import RecipeConfig
from sage_grpo.core.protocols import VideoModel
from sage_grpo.data.prompts import Prompts
from sage_grpo.plan.assumptions import Assumed
from sage_grpo.plan.hardware import GPU
from sage_grpo.training import build


@dataclass(frozen=True)
class Encoders:
    """The encoders of a model: their size, what one prompt takes, and what is stored of it."""

    bytes: int
    flops: float
    stored: int


@dataclass(frozen=True)
class Encoding:
    """What encoding takes, once, before the first iteration. All is 0 where the encoders stay in memory."""

    prompts: int = 0
    """Prompts at most: those that are alike, or stored by an earlier run, are not encoded again."""
    seconds: float = 0.0
    stored: int = 0
    """Bytes on disk."""


def encodes_ahead(model: VideoModel, config: RecipeConfig) -> bool:
    """Return whether the recipe's model leaves its encoders out once the prompts are encoded."""
    return config.tuning.encode_ahead and bool(model.encoders)


def encoders_of(model: Any, config: RecipeConfig) -> Encoders:
    """Return the size of a model's encoders, and what one prompt takes.

    A prompt takes two operations for each weight of a matrix and token of the text, at the length that encoders pad to.
    """
    if not encodes_ahead(model, config):
        return Encoders(0, 0.0, 0)
    parts = [part for name in model.encoders if (part := getattr(model.pipe, name, None)) is not None]
    weights = sum(w.numel() * w.element_size() for part in parts for w in part.parameters())
    matrices = sum(x.weight.numel() for part in parts for x in part.modules() if isinstance(x, nn.Linear))
    blank = model.blank_condition(1) or {}
    stored = sum(x.numel() * x.element_size() for name, x in blank.items() if not name.startswith("negative_"))
    return Encoders(weights, 2.0 * matrices * model.encoded_tokens, stored)


def prompts_of(config: RecipeConfig) -> int:
    """Return how many prompts a run encodes.

    That is as many as its iterations need, and at most all of its file, where that is here.
    """
    asked = config.run.iterations * config.policy.prompts_per_iteration
    path = config.prompts.path
    if path is None or not Path(path).expanduser().is_file():
        return asked
    source = build.build_prompts(config)
    return min(asked, len(source)) if isinstance(source, Prompts) else asked


def encoding(config: RecipeConfig, encoders: Encoders, gpu: GPU, assumed: Assumed) -> Encoding:
    """Return the prompts, seconds and bytes on disk that encoding takes.

    Each process reads the encoders, which a node reads from disk once, and encodes its share, text by text.
    """
    if not encoders.bytes:
        return Encoding()
    prompts = prompts_of(config)
    share = math.ceil(prompts / config.parallel.processes) + 1  # and the negative prompt
    arithmetic = encoders.flops / (assumed.text_encoder * gpu.flops)
    text = max(arithmetic, encoders.bytes / (assumed.memory * gpu.bandwidth))
    loading = encoders.bytes / assumed.disk + encoders.bytes / gpu.host
    return Encoding(prompts, loading + share * text, (prompts + 1) * encoders.stored)
