"""Store the answers of raters on the disk before they are acknowledged, with no names and no addresses.

There is one file per rater, with one line per answer.
"""

import json
import os
import secrets
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from sage_grpo.config import ConfigError
from sage_grpo.evaluation.study.plan import ANSWERS, Showing, StudyPlan, assign
from sage_grpo.runs.lock import take

MOST_RATERS = 2000  # so that an open address cannot fill the disk
AWAY = 3600.0  # seconds after which a rater's open comparisons are offered to others


class Conflict(ValueError):
    """Raised when the rater has answered the pair differently in another window."""


@dataclass
class Answer:
    choices: dict[str, str]
    revision: int
    first_ms: int  # time taken for the first answer; a later change does not count


@dataclass
class Rater:
    id: str
    number: int
    showings: list[Showing]
    answers: dict[int, Answer] = field(default_factory=dict)
    last_seen: float = 0.0
    fetched: set[tuple[int, str]] = field(default_factory=set)  # positions and sides of videos
    joined_now: bool = False  # since the server started: what was fetched before is not written down

    def may_answer(self, position: int) -> bool:
        """Return whether the rater may answer the pair at `position`: both of its videos were fetched.

        What was fetched before a restart of the server is not known, so raters who joined before it may answer any
        pair.
        """
        return not self.joined_now or {(position, "left"), (position, "right")} <= self.fetched

    @property
    def finished(self) -> bool:
        return len(self.answers) == len(self.showings)


@dataclass(frozen=True)
class RaterLine:
    """The first line of a rater's file: the rater, the hash of the plan, and the comparisons to show."""

    rater: str
    number: int
    plan: str  # hash
    time: float
    showings: list[Showing]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Self:
        showings = [Showing(**showing) for showing in row["showings"]]
        return cls(row["rater"], row["number"], row["plan"], row["time"], showings)


@dataclass(frozen=True)
class AnswerLine:
    """Every other line of a rater's file: an answer, or a later revision of an answer."""

    position: int
    comparison: str
    swapped: bool
    repeat: bool
    choices: dict[str, str]
    revision: int
    milliseconds: int
    time: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Self:
        return cls(
            row["position"],
            row["comparison"],
            row["swapped"],
            row["repeat"],
            row["choices"],
            row["revision"],
            row["milliseconds"],
            row["time"],
        )


@dataclass(frozen=True)
class StudyProgress:
    raters: int
    finished: int  # of the raters
    answers: int
    asked: int  # answers that these raters were asked for


def rater_id(token: str) -> str:
    """Return the id of a rater, a hash of the rater's secret token.

    The id is in the rater's file; the token itself stays with the rater.
    """
    return sha256(token.encode()).hexdigest()[:16]


def read_rater(path: Path, plan_hash: str, mend: bool = False) -> Rater | None:
    """Return the rater and the answers in a file; None if not even the first line is whole.

    `plan_hash` is the hash of the plan that the file must name. With `mend`, a last line that a crash has torn is cut
    off.

    Raises:
        ConfigError: A line is damaged, or the answers are of another plan.
    """
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if mend and len(whole) < len(data):
        with path.open("r+b") as file:
            file.truncate(len(whole))
    rater: Rater | None = None
    for i, line in enumerate(whole.splitlines(), 1):
        try:
            row = json.loads(line)
            if rater is None:
                rater = _rater(row, path, plan_hash)
            else:
                _take(rater, AnswerLine.from_json(row))
        except ConfigError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} line {i} is damaged ({error!r}); fix it, or remove the line") from error
    return rater


def _rater(row: dict[str, Any], path: Path, plan_hash: str) -> Rater:
    if row["plan"] != plan_hash:  # before what another version may have written otherwise
        raise ConfigError(
            f"{path} was answered under another plan.json ({row['plan'][:12]}… instead of {plan_hash[:12]}…): a plan "
            "must not change once it is rated; put the old one back, or move the answers away"
        )
    line = RaterLine.from_json(row)
    return Rater(line.rater, line.number, line.showings, last_seen=line.time)


def _take(rater: Rater, line: AnswerLine) -> None:
    before = rater.answers.get(line.position)
    first = before.first_ms if before else line.milliseconds
    rater.answers[line.position] = Answer(line.choices, line.revision, first)
    rater.last_seen = line.time


class Store:
    """The raters of a running study and their files.

    A store is safe for many threads, and for one process only.
    """

    def __init__(self, folder: Path, plan: StudyPlan, plan_hash: str, raters: int | None = None) -> None:
        self.plan, self.plan_hash, self.target_raters = plan, plan_hash, raters
        self.folder = folder / ANSWERS
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lock = threading.Lock()
        self._held = take(self.folder / ".lock")
        if self._held is None:
            raise ConfigError(f"{folder} is being run already; end that one first")
        paths = sorted(self.folder.glob("*.jsonl"))
        self.raters = {r.id: r for path in paths if (r := read_rater(path, plan_hash, mend=True))}

    def close(self) -> None:
        with self.lock:  # an answer under way is written to its end
            if self._held is not None:
                os.close(self._held)
                self._held = None

    def _counts(self) -> tuple[Counter[str], Counter[str]]:
        """Return, for each comparison, how many answers it has or may expect, and how many raters were assigned it.

        An answer is expected from a rater who was seen in the last hour.
        """
        expected: Counter[str] = Counter()
        assigned: Counter[str] = Counter()
        now = time.time()
        for rater in self.raters.values():
            for at, showing in enumerate(rater.showings):
                if not showing.repeat:
                    assigned[showing.comparison] += 1
                    expected[showing.comparison] += at in rater.answers or now - rater.last_seen < AWAY
        return expected, assigned

    @property
    def open(self) -> bool:
        with self.lock:
            return self._open(self._counts()[0])

    def _open(self, expected: Counter[str]) -> bool:
        target = self.target_raters
        enough = target is not None and all(expected[pair.id] >= target for pair in self.plan.comparisons)
        return not enough and len(self.raters) < MOST_RATERS

    def join(self) -> str | None:
        """Add a new rater and return the rater's secret token; None if the study takes no more raters."""
        with self.lock:
            expected, assigned = self._counts()
            if not self._open(expected):
                return None
            token = secrets.token_urlsafe(16)
            number = len(self.raters)
            showings = assign(self.plan, number, expected, assigned)
            rater = Rater(rater_id(token), number, showings, last_seen=time.time(), joined_now=True)
            self._append(rater, RaterLine(rater.id, number, self.plan_hash, rater.last_seen, showings))
            self.raters[rater.id] = rater
            return token

    def find(self, token: str) -> Rater | None:
        return self.raters.get(rater_id(token))

    def save(self, rater: Rater, position: int, choices: dict[str, str], revision: int, milliseconds: int) -> None:
        """Save the rater's answer to the pair at `position`, and write it to the rater's file.

        An answer that is already saved, or is older than the saved revision, is left out.

        Raises:
            Conflict: The saved answer has the same revision and other choices, from another window.
        """
        with self.lock:
            before = rater.answers.get(position)
            if before and revision < before.revision:
                return
            if before and revision == before.revision:
                if choices != before.choices:
                    raise Conflict("this pair was answered in another window")
                return
            showing, now = rater.showings[position], round(time.time(), 3)
            line = AnswerLine(
                position, showing.comparison, showing.swapped, showing.repeat, choices, revision, milliseconds, now
            )
            self._append(rater, line)
            _take(rater, line)

    def _append(self, rater: Rater, line: RaterLine | AnswerLine) -> None:
        path = self.folder / f"{rater.id}.jsonl"
        before = path.stat().st_size if path.exists() else 0
        try:
            with path.open("ab") as file:
                file.write(json.dumps(line.to_json()).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError:  # a full disk: what was half written must not damage the next line
            if path.exists():
                os.truncate(path, before)
            raise

    def progress(self) -> StudyProgress:
        with self.lock:
            raters = list(self.raters.values())
            return StudyProgress(
                len(raters),
                sum(rater.finished for rater in raters),
                sum(len(rater.answers) for rater in raters),
                sum(len(rater.showings) for rater in raters),
            )
