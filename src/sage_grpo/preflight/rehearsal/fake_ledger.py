"""A ledger of what makes the host wait for the device or moves bytes between them: by phase, file and line."""

import sys
import sysconfig
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import torch

PROJECT = str(Path(__file__).parents[2])
MACHINERY = str(Path(__file__).parent / "fake_")  # the files of this rehearsal, which stand between all others
TORCH = str(Path(torch.__file__).parent)
PYTHON = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
SITE = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})


class Place(NamedTuple):
    """A line of this project, and the line of a library or of a user's file that it led to."""

    project: str
    inside: str

    def __str__(self) -> str:
        return f"{self.project} (in {self.inside})" if self.inside else self.project


class Entry(NamedTuple):
    kind: str  # "wait", "to host" or "to device"
    phase: str
    place: Place
    operation: str


@dataclass(frozen=True)
class Total:
    count: int
    bytes: int


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _caller() -> Iterator[FrameType]:
    """Yield the frames of this thread from the innermost outwards, and then those of the main thread.

    Backward passes run in threads of torch, for which the main thread waits.
    """
    yield from _outwards(sys._getframe(1))
    main = threading.main_thread()
    if threading.current_thread() is not main:
        yield from _outwards(sys._current_frames().get(main.ident or 0))


def _line(frame: FrameType, number: int | None = None) -> str:
    name = frame.f_code.co_filename
    for root in (PROJECT, *SITE):
        if name.startswith(root):
            name = name.removeprefix(root).lstrip("/")
            break
    return f"{name}:{number or frame.f_lineno}"


def place_of(frames: Iterator[tuple[FrameType, int]]) -> Place:
    """Return the innermost line of this project among frames, and the line of other code that it led to.

    `frames` are from the innermost outwards, each with its line number.
    """
    inside = ""
    for frame, number in frames:
        name = frame.f_code.co_filename
        if name.startswith((MACHINERY, TORCH, "<")):
            continue
        if name.startswith(PROJECT):
            return Place(_line(frame, number), inside)
        if not inside and (name.startswith(SITE) or not name.startswith(PYTHON)):
            inside = _line(frame, number)
    return Place("?", inside)


def here() -> Place:
    """Return the line of this project that the program is at now."""
    return place_of((frame, frame.f_lineno) for frame in _caller())


def place_of_error(error: BaseException) -> Place:
    frames, step = [], error.__traceback__
    while step is not None:
        frames.append((step.tb_frame, step.tb_lineno))
        step = step.tb_next
    return place_of(iter(frames[::-1]))


class Ledger:
    """The record of what made the host wait or moved bytes, counted by phase, place and operation.

    `phases` has the phase that a function of the project begins, by the function's code. If several of these functions
    are running, the innermost one counts.
    """

    def __init__(self, phases: Mapping[CodeType, str]) -> None:
        self.phases = phases
        self._count: Counter[Entry] = Counter()
        self._bytes: Counter[Entry] = Counter()

    def note(self, kind: str, operation: str, size: int = 0) -> None:
        entry = Entry(kind, self.phase(), here(), operation)
        self._count[entry] += 1
        self._bytes[entry] += size

    def phase(self) -> str:
        phases = (self.phases[frame.f_code] for frame in _caller() if frame.f_code in self.phases)
        return next(phases, "elsewhere")

    @property
    def totals(self) -> dict[Entry, Total]:
        return {entry: Total(count, self._bytes[entry]) for entry, count in self._count.items()}
