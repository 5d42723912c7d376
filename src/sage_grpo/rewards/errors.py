"""The exceptions of scorers: what can be wrong before they have scored anything."""

from sage_grpo.errors import UserError


class RewardError(UserError, ValueError):
    """Raised when a scorer's checkpoint, options or videos are wrong for all videos alike.

    It says what is wrong and the nearest fix.
    """


class MissingWeights(RewardError):
    """Raised when a scorer's checkpoint is not on this computer."""
