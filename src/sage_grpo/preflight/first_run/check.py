"""The result of one check: whether it passed, what was found, and how to fix it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    name: str
    ok: bool
    found: str
    fix: str = ""
    """How to fix the problem if the check failed."""
    needed: bool = True
    """Whether nothing can run if the check failed; otherwise a failure is only a warning."""

    @property
    def broken(self) -> bool:
        return self.needed and not self.ok
