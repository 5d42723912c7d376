"""One thing that was looked at."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    name: str
    ok: bool
    found: str
    fix: str = ""
    """What to do where it is not as it should be."""
    needed: bool = True
    """Nothing runs without it."""

    @property
    def broken(self) -> bool:
        return self.needed and not self.ok
