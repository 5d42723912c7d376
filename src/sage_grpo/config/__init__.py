"""Validated settings. Nothing here imports torch, so a recipe can be checked anywhere in a moment."""

from sage_grpo.config.algorithm import AlgorithmConfig, KLConfig, PolicyConfig, SamplingConfig

__all__ = ["AlgorithmConfig", "KLConfig", "PolicyConfig", "SamplingConfig"]
