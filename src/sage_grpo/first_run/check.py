"""The result of one check, with how to fix it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    name: str
    ok: bool
    found: str
    fix: str = ""
    """What to do where the check failed."""
    needed: bool = True
    """Whether nothing runs without it."""

    @property
    def broken(self) -> bool:
        return self.needed and not self.ok
