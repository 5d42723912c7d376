"""Answers on the disk before they are acknowledged: one file a rater, one line an answer, no names and no addresses."""

import fcntl
import json
import os
import secrets
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from sage_grpo.config import ConfigError
from sage_grpo.evaluation.study.plan import ANSWERS, Showing, StudyPlan, assign

MOST_RATERS = 2000  # so that an open address cannot fill the disk
AWAY = 3600.0  # seconds after which a rater's open comparisons are offered to others


class Conflict(ValueError):
    """Another window has answered this differently."""


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
    seen: float = 0.0  # last sign of life

    @property
    def finished(self) -> bool:
        return len(self.answers) == len(self.showings)


def rater_id(token: str) -> str:
    """The token stays with the rater; files have its hash."""
    return sha256(token.encode()).hexdigest()[:16]


def read_rater(path: Path, plan_hash: str, mend: bool = False) -> Rater | None:
    """None if not even the first line is whole. `mend` cuts off a last line that a crash has torn."""
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
                rater = _header(row, path, plan_hash)
            else:
                _take(rater, row)
        except ConfigError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} line {i} is damaged ({error!r}); mend it, or remove the line") from error
    return rater


def _header(row: dict[str, Any], path: Path, plan_hash: str) -> Rater:
    if row["plan"] != plan_hash:
        raise ConfigError(
            f"{path} was answered under another plan.json ({row['plan'][:12]}… instead of {plan_hash[:12]}…): a plan "
            "must not change once it is rated; put the old one back, or move the answers away"
        )
    return Rater(row["rater"], row["number"], [Showing(**one) for one in row["showings"]], seen=row["time"])


def _take(rater: Rater, row: dict[str, Any]) -> None:
    at, before = row["position"], rater.answers.get(row["position"])
    first = before.first_ms if before else row["milliseconds"]
    rater.answers[at] = Answer(row["choices"], row["revision"], first)
    rater.seen = row["time"]


class Store:
    """All raters of a running study. Safe for many threads, and for one process only."""

    def __init__(self, folder: Path, plan: StudyPlan, plan_hash: str, raters: int | None = None) -> None:
        self.plan, self.plan_hash, self.wanted = plan, plan_hash, raters
        self.folder = folder / ANSWERS
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lock = threading.Lock()
        self._held = (self.folder / ".lock").open("w")
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"{folder} is being run already; end that one first") from None
        found = [read_rater(path, plan_hash, mend=True) for path in sorted(self.folder.glob("*.jsonl"))]
        self.raters = {one.id: one for one in found if one}

    def close(self) -> None:
        with self.lock:  # an answer under way is written to its end
            self._held.close()

    def _counts(self) -> tuple[Counter[str], Counter[str]]:
        taken: Counter[str] = Counter()
        shown: Counter[str] = Counter()
        now = time.time()
        for rater in self.raters.values():
            for at, one in enumerate(rater.showings):
                if not one.repeat:
                    shown[one.comparison] += 1
                    taken[one.comparison] += at in rater.answers or now - rater.seen < AWAY
        return taken, shown

    @property
    def open(self) -> bool:
        with self.lock:
            return self._open(self._counts()[0])

    def _open(self, taken: Counter[str]) -> bool:
        enough = self.wanted is not None and all(taken[one.id] >= self.wanted for one in self.plan.comparisons)
        return not enough and len(self.raters) < MOST_RATERS

    def join(self) -> str | None:
        """A new rater's token; None if enough have come."""
        with self.lock:
            taken, shown = self._counts()
            if not self._open(taken):
                return None
            token = secrets.token_urlsafe(16)
            number = len(self.raters)
            rater = Rater(rater_id(token), number, assign(self.plan, number, taken, shown), seen=time.time())
            row = {
                "rater": rater.id,
                "number": number,
                "plan": self.plan_hash,
                "time": rater.seen,
                "showings": [asdict(one) for one in rater.showings],
            }
            self._append(rater, row)
            self.raters[rater.id] = rater
            return token

    def find(self, token: str) -> Rater | None:
        return self.raters.get(rater_id(token))

    def save(self, rater: Rater, position: int, choices: dict[str, str], revision: int, milliseconds: int) -> None:
        """The same answer twice is kept once; one that was overtaken by a later revision is left out."""
        with self.lock:
            before = rater.answers.get(position)
            if before and revision < before.revision:
                return
            if before and revision == before.revision:
                if choices != before.choices:
                    raise Conflict("this pair was answered in another window")
                return
            one = rater.showings[position]
            row = {
                "position": position,
                "comparison": one.comparison,
                "swapped": one.swapped,
                "repeat": one.repeat,
                "choices": choices,
                "revision": revision,
                "milliseconds": milliseconds,
                "time": round(time.time(), 3),
            }
            self._append(rater, row)
            _take(rater, row)

    def _append(self, rater: Rater, row: dict[str, Any]) -> None:
        path = self.folder / f"{rater.id}.jsonl"
        before = path.stat().st_size if path.exists() else 0
        try:
            with path.open("ab") as file:
                file.write(json.dumps(row).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError:  # a full disk: what was half written must not spoil the next line
            if path.exists():
                os.truncate(path, before)
            raise

    def progress(self) -> tuple[int, int, int, int]:
        """Raters, of these finished; answers, and how many these raters were asked for."""
        with self.lock:
            all_ = list(self.raters.values())
            done = sum(len(one.answers) for one in all_)
            return len(all_), sum(one.finished for one in all_), done, sum(len(one.showings) for one in all_)
