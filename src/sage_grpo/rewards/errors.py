"""The exceptions that scorers raise if they cannot be made, or cannot score any of the videos."""

from sage_grpo.errors import UserError


class RewardError(UserError, ValueError):
    """Raised when a scorer's checkpoint or options are wrong, or when something is wrong with all videos alike.

    The message says what is wrong and the nearest fix.
    """


class MissingWeights(RewardError):
    """Raised when a scorer's checkpoint is not on this computer."""
