"""The seconds and bytes that it takes to encode the prompts of a run before its first iteration."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from sage_grpo.config import RecipeConfig
from sage_grpo.core.video_model import VideoModel
from sage_grpo.data.prompts import Prompts
from sage_grpo.preflight.plan.assumptions import Assumed
from sage_grpo.preflight.plan.hardware import GPU
from sage_grpo.training import build


@dataclass(frozen=True)
class Encoders:
    """The encoders of a model: bytes of their weights, FLOPs per prompt, and bytes that are stored per prompt."""

    bytes: int
    flops: float
    stored: int


@dataclass(frozen=True)
class Encoding:
    """What it takes to encode all prompts once, before the first iteration. All is 0 if the encoders stay in memory."""

    prompts: int = 0
    """Prompts to encode at most. Equal prompts, and those that an earlier run stored, are encoded only once."""
    seconds: float = 0.0
    stored: int = 0
    """Bytes of all encoded prompts on disk."""


def encodes_ahead(model: VideoModel, config: RecipeConfig) -> bool:
    """Return whether a run encodes its prompts first, and then removes the model's encoders from memory."""
    return config.tuning.encode_ahead and bool(model.encoders)


def encoders_of(model: Any, config: RecipeConfig) -> Encoders:
    """Return the size of a model's encoders, and their work and storage per prompt.

    All is 0 if prompts are not encoded ahead. A prompt takes two operations per weight of a matrix and token of the
    text, at the length that encoders pad to.
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
    """Return the number of prompts that a run encodes.

    It is the number that the run's iterations need. If the prompt file is on this computer, it is at most the number of
    prompts in the file.
    """
    asked = config.run.iterations * config.policy.prompts_per_iteration
    path = config.prompts.path
    if path is None or not Path(path).expanduser().is_file():
        return asked
    source = build.build_prompts(config)
    return min(asked, len(source)) if isinstance(source, Prompts) else asked


def encoding(config: RecipeConfig, encoders: Encoders, gpu: GPU, assumed: Assumed) -> Encoding:
    """Return the number of prompts that are encoded, and the seconds and bytes on disk that this takes.

    Each node reads the encoders from disk once. Each process then encodes its share of the prompts, one at a time.
    """
    if not encoders.bytes:
        return Encoding()
    prompts = prompts_of(config)
    share = math.ceil(prompts / config.parallel.processes) + 1  # and the negative prompt
    arithmetic = encoders.flops / (assumed.text_encoder * gpu.flops)
    text = max(arithmetic, encoders.bytes / (assumed.memory * gpu.bandwidth))
    loading = encoders.bytes / assumed.disk + encoders.bytes / gpu.host
    return Encoding(prompts, loading + share * text, (prompts + 1) * encoders.stored)
