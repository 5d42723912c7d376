"""What can be wrong with a model. Without its libraries too: who plans or compares the laboratory's needs none."""

from sage_grpo.errors import UserError


class ModelError(UserError, ValueError):
    """The checkpoint or the request does not fit the model: what is wrong and the nearest fix."""
