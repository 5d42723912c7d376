"""The reward of the world of shapes in the units of its first base."""

from collections.abc import Mapping

from sage_grpo.lab.shapes.reward import ShapesReward
from sage_grpo.registry import reward


@reward("shapes-first")
class FirstShapesReward(ShapesReward):
    """VQ, MQ and TA as in `ShapesReward`, in standard deviations of the first base."""

    base: Mapping[str, tuple[float, float]] = {"VQ": (-1.346, 0.438), "MQ": (-0.082, 0.038), "TA": (-3.749, 2.650)}
