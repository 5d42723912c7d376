"""The exception of models, in a module that imports neither diffusers nor transformers.

So the laboratory's models can be planned and compared on a machine without these libraries.
"""

from sage_grpo.errors import UserError


class ModelError(UserError, ValueError):
    """Raised when a checkpoint or a setting does not fit the model.

    The message says what is wrong and the nearest fix.
    """
