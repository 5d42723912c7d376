"""Results of runs, a line each in one file: what is there is done, and stays next to what is concluded from it."""

import json
from hashlib import blake2b
from pathlib import Path
from typing import Any

from sage_grpo.config import RecipeConfig

DIGITS = 6  # significant ones: more are noise


class RunLog:
    """Written by one process, and read again when that was killed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, dict[str, Any]]:
        """Results by key. A line that a killed writer left unfinished counts for nothing."""
        found: dict[str, dict[str, Any]] = {}
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            found[row.pop("key")] = row
        return found

    def add(self, key: str, result: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+") as file:
            size = file.seek(0, 2)
            if size:
                file.seek(size - 1)
            torn = size and file.read(1) != b"\n"
            line = json.dumps(rounded({"key": key, **result}), separators=(",", ":"))
            file.write((b"\n" if torn else b"") + f"{line}\n".encode())


def key_of(name: str, config: RecipeConfig, *more: object) -> str:
    """Return the key of a run: its name, and a digest of all that decides its result.

    Settings that stand at their default are not in it: one that is added later, and leaves runs as they were, would
    else take every run off the record.
    """
    decides = " ".join([config.model_dump_json(exclude_defaults=True), *map(str, more)])
    return f"{name}-{blake2b(decides.encode(), digest_size=4).hexdigest()}"


def rounded(value: Any) -> Any:
    """All numbers of what JSON can hold."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list) else value
