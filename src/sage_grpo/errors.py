"""Errors that people read as a sentence instead of a stack trace. Imports nothing, so every part may raise it."""


class UserError(Exception):
    """Raised when something outside the program is wrong; the message says what, what is needed and the nearest fix."""
