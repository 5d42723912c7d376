"""Metrics for the studies' runs: fresh videos with equal seeds, made by the sampler of one recipe per world."""

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
    """The metrics of one world: the reward as a quick look, and a full evaluation.

    Both can be applied to any run, whatever sampler its rollouts use.
    """

    recipe: str
    """The recipe whose settings the runs vary, and whose sampler measures them."""
    reward: Callable[[Loop, RecipeConfig], float]
    """Function that returns the mean reward of `WATCHED` fresh videos of a run's model: a quick look."""
    evaluate: Callable[[Loop, RecipeConfig, int], dict[str, Any]]
    """Function that returns at least reward, accuracy, distance and diversity of a number of fresh videos, as means."""


def metrics_of(world: str) -> WorldMetrics:
    """Return the metrics of world `shapes` or `text`. Those of `text` are imported here, because they need OCR."""
    metrics: WorldMetrics = import_module(f"research.metrics_{world}").METRICS
    return metrics


def watched(loop: Loop, config: RecipeConfig, texts: Sequence[str]) -> tuple[Tensor, list[Prompt]]:
    """Return `WATCHED` fresh videos (N, F, H, W, 3), uint8, of a run's model, and their prompts.

    The prompts are `texts` in turn. The model has the moving average of its weights if the run keeps one.
    """
    prompts = [Prompt(texts[i % len(texts)]) for i in range(WATCHED)]
    with averaged(loop):
        x0 = generate(loop.model, prompts, config, range(FIRST_SEED, FIRST_SEED + WATCHED))
        return loop.model.decode(x0), prompts
