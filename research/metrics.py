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
    """The metrics of one world. Both apply to any run, whatever sampler its rollouts use."""

    recipe: str
    """The recipe whose settings the runs vary, and whose sampler measures them."""
    reward: Callable[[Loop, RecipeConfig], float]
    """A quick look: the mean reward of `WATCHED` fresh videos."""
    evaluate: Callable[[Loop, RecipeConfig, int], dict[str, Any]]
    """An evaluation on so many videos: reward, accuracy, distance and diversity at least."""


def metrics_of(world: str) -> WorldMetrics:
    """Return the metrics of `shapes` or `text`. Those of text are imported here, because they need OCR."""
    metrics: WorldMetrics = import_module(f"research.metrics_{world}").METRICS
    return metrics


def watched(loop: Loop, config: RecipeConfig, texts: Sequence[str]) -> tuple[Tensor, list[Prompt]]:
    """Return fresh videos (N, F, H, W, 3), uint8, for a quick look, and their prompts: these texts in turn."""
    prompts = [Prompt(texts[i % len(texts)]) for i in range(WATCHED)]
    with averaged(loop):
        x0 = generate(loop.model, prompts, config, range(FIRST_SEED, FIRST_SEED + WATCHED))
        return loop.model.decode(x0), prompts
