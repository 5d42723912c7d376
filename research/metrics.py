"""How runs of a world of the laboratory are measured: by a recipe's sampler, on fresh videos of equal seeds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torch import Tensor

from sage_grpo.config import RecipeConfig
from sage_grpo.core.loop import Loop
from sage_grpo.core.protocols import Prompt
from sage_grpo.core.sampler import generate
from sage_grpo.training.callbacks import averaged

WATCHED = 192  # fresh videos, the same for all runs, whose reward is looked at on the way
FIRST_SEED = 2_000_000  # away from the seeds of evaluations


@dataclass(frozen=True)
class WorldMetrics:
    """Metrics of one world. Both apply to any run, whatever its rollouts use."""

    recipe: str
    """Whose choices runs vary, and whose sampler they are measured by."""
    reward: Callable[[Loop, RecipeConfig], float]
    """At a glance."""
    evaluate: Callable[[Loop, RecipeConfig, int], dict[str, Any]]
    """On so many videos: reward, accuracy, distance and diversity at least."""


def metrics_of(world: str) -> WorldMetrics:
    """Return the metrics of `shapes` or `text`. Those of text are imported here, because they need OCR."""
    metrics: WorldMetrics = import_module(f"research.metrics_{world}").METRICS
    return metrics


def watched(loop: Loop, config: RecipeConfig, texts: Sequence[str]) -> tuple[Tensor, list[Prompt]]:
    """Videos for a glance, of these prompts in turn."""
    prompts = [Prompt(texts[i % len(texts)]) for i in range(WATCHED)]
    with averaged(loop):
        x0 = generate(loop.model, prompts, config, range(FIRST_SEED, FIRST_SEED + WATCHED))
        return loop.model.decode(x0), prompts
