"""Results of runs in one file, a line each. A run that is in it is done.

The file stays next to what is concluded from it.
"""

import json
from hashlib import blake2b
from pathlib import Path
from typing import Any

from sage_grpo.config import RecipeConfig

DIGITS = 6  # significant ones: more are noise


class RunLog:
    """A file of results that one process writes, and that is read again when that process was killed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, dict[str, Any]]:
        """Return the results by key. A line that a killed writer left unfinished counts for nothing."""
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

    Settings at their default are not in the digest. Otherwise a setting that is added later, and leaves runs as they
    were, would make all of them run again.
    """
    decides = " ".join([config.model_dump_json(exclude_defaults=True), *map(str, more)])
    return f"{name}-{blake2b(decides.encode(), digest_size=4).hexdigest()}"


def rounded(value: Any) -> Any:
    """Return a value of JSON with all of its numbers rounded to `DIGITS` significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list) else value
