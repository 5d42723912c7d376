"""Suggestions for a misspelled name: the known name that is most similar."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    return next(iter(get_close_matches(name, list(known), 1, cutoff)), None)


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return a sentence that suggests the known name most similar to `name`.

    If the similarity (0 to 1) of every known name is below `cutoff`, the sentence lists all known names.
    """
    names = sorted(known)
    close = nearest(name, names, cutoff)
    return f"did you mean {close!r}?" if close else f"known: {', '.join(names) or 'none'}."
