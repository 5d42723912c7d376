"""The error that users see as a sentence instead of a stack trace.

This module imports nothing, so that every other module can import it.
"""


class UserError(Exception):
    """Raised when something outside the program, such as a setting or a file, is wrong.

    The message says what is wrong, what is needed and the nearest fix.
    """
