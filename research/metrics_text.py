"""Metrics for runs in the world of four-digit numbers, with OCR."""

from typing import Any

from research.metrics import WATCHED, WorldMetrics, watched
from sage_grpo.config import RecipeConfig
from sage_grpo.core.loop import Loop
from sage_grpo.lab.digits.evaluate import evaluate_run
from sage_grpo.lab.digits.world import fresh_prompts
from sage_grpo.rewards.ocr import OCRReward


def reward(loop: Loop, config: RecipeConfig) -> float:
    reader = OCRReward(frames=1, detect=False)
    return reader.score(*watched(loop, config, fresh_prompts(WATCHED))).values.double().mean().item()


def evaluate(loop: Loop, config: RecipeConfig, samples: int) -> dict[str, Any]:
    """Return the means of a run's measures on `samples` fresh videos, read by OCR and by a second reader.

    No reward uses the second reader.
    """
    found = evaluate_run(loop, config, samples)
    return {
        "reward": found.characters().mean().item(),
        "accuracy": found.exact().mean().item(),
        "distance": found.distance.mean().item(),
        "diversity": found.diversity,
        "second_reader": found.second.double().prod(1).mean().item(),
    }


METRICS = WorldMetrics("text", reward, evaluate)
