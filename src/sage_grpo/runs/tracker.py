"""Trackers by name: what records the metrics of a run, in a file or a service."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from sage_grpo.config import ConfigError


class Tracker(Protocol):
    """Records the metrics and sample videos of a run. Only the first process of a run has trackers."""

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Record the metrics of an iteration, by name."""
        ...

    def video(self, step: int, name: str, path: Path) -> None:
        """Record a sample video, an mp4 file."""
        ...

    def close(self) -> None:
        """Write what is left. This is the last call."""
        ...


@dataclass(frozen=True)
class TrackedRun:
    """The run that a tracker records."""

    folder: Path
    name: str
    """Its name for people: that of its folder."""
    config: dict[str, Any]
    """The recipe as plain values, without tokens or passwords."""
    resume_at: int | None
    """The first step that this start of the run will log. Steps from there on may be on record already, from a start
    that was killed, and come again."""


JSONL = "jsonl"  # of every run, named or not
BUILT_IN = (JSONL, "tensorboard", "trackio", "wandb")
TRACKERS: dict[str, Callable[[TrackedRun], Tracker]] = {}
C = TypeVar("C", bound=Callable[[TrackedRun], Tracker])


def check_tracker(name: str, made: Any) -> None:
    """Raise a ConfigError if a tracker, or the class of one, lacks a method of `Tracker`."""
    missing = [method for method in ("log", "video", "close") if not callable(getattr(made, method, None))]
    if missing:
        kind = made if isinstance(made, type) else type(made)
        raise ConfigError(f"tracker {name!r}: {kind.__name__} has no {', '.join(missing)}; define it")


def tracker(name: str) -> Callable[[C], C]:
    """Register a tracker for use in `run.trackers`: put `@tracker("mine")` above a class that is made from the run.

    Examples:
        >>> from sage_grpo import tracker
        >>> @tracker("printed")
        ... class Printed:
        ...     def __init__(self, run): self.name = run.name
        ...     def log(self, step, metrics): print(self.name, step, metrics["reward/mean"])
        ...     def video(self, step, name, path): pass
        ...     def close(self): pass
    """

    def register(made: C) -> C:
        if name in BUILT_IN and not made.__module__.startswith("sage_grpo."):
            raise ConfigError(f"tracker {name!r} is built in; give {made.__module__}:{made.__qualname__} another name")
        known = TRACKERS.get(name)
        if known and (known.__module__, known.__qualname__) != (made.__module__, made.__qualname__):
            raise ConfigError(f"tracker {name!r} is already registered, by {known.__module__}")
        if isinstance(made, type):
            check_tracker(name, made)
        TRACKERS[name] = made
        return made

    return register
