"""What can be wrong with a scorer before it has judged anything."""

from sage_grpo.errors import UserError


class RewardError(UserError, ValueError):
    """The scorer's checkpoint, its options or its videos are wrong for all videos alike: what, and the nearest fix."""


class MissingWeights(RewardError):
    """The scorer's checkpoint is not on this computer."""
