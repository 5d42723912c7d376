"""Metrics for runs in the world of shapes."""

from typing import Any

import torch

from research.grid import summary
from research.metrics import WorldMetrics, watched
from sage_grpo.config import RecipeConfig
from sage_grpo.core.loop import Loop
from sage_grpo.lab.first.reward import FirstShapesReward
from sage_grpo.lab.shapes.evaluate import SETTING_B, evaluate_run
from sage_grpo.lab.shapes.world import all_prompts


def reward(loop: Loop, config: RecipeConfig) -> float:
    scores = FirstShapesReward().score(*watched(loop, config, all_prompts())).values.double()
    return (scores @ torch.tensor(SETTING_B, dtype=torch.float64)).mean().item()


def evaluate(loop: Loop, config: RecipeConfig, samples: int) -> dict[str, Any]:
    return summary(evaluate_run(loop, config, samples))


METRICS = WorldMetrics("lab-paper", reward, evaluate)
