"""Recipes and other validated settings. Nothing here imports torch, so a recipe can be checked anywhere in a moment."""

from sage_grpo.config.algorithm import AlgorithmConfig, KLConfig, PolicyConfig, SamplingConfig, WindowConfig
from sage_grpo.config.fleet import FleetConfig, ScorerConfig
from sage_grpo.config.load import ConfigError, dump_recipe, load_fleet, load_recipe
from sage_grpo.config.recipe import (
    GaugeConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    RecipeConfig,
    RewardConfig,
    RunConfig,
    TuningConfig,
)

__all__ = [
    "AlgorithmConfig",
    "ConfigError",
    "FleetConfig",
    "GaugeConfig",
    "KLConfig",
    "ModelConfig",
    "OptimizerConfig",
    "ParallelConfig",
    "PolicyConfig",
    "RecipeConfig",
    "RewardConfig",
    "RunConfig",
    "SamplingConfig",
    "ScorerConfig",
    "TuningConfig",
    "WindowConfig",
    "dump_recipe",
    "load_fleet",
    "load_recipe",
]
