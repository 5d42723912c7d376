"""The exception of models, in a module that needs none of their libraries.

Planning and comparing the laboratory's models works without these libraries.
"""

from sage_grpo.errors import UserError


class ModelError(UserError, ValueError):
    """Raised when the checkpoint or the request does not fit the model. It says what is wrong and the nearest fix."""
