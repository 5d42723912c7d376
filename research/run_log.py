"""The results of a study's runs in one file, one line per run. A run with a line there is not run again.

The file stays in the folder of the tables and figures that are made from it.
"""

import json
from hashlib import blake2b
from pathlib import Path
from typing import Any

from sage_grpo.config import RecipeConfig

DIGITS = 6  # significant ones: more are noise


class RunLog:
    """A file of results that one process writes. If this process is killed, the next one reads it and continues."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, dict[str, Any]]:
        """Return the results of finished runs by key. A line that a killed process left unfinished is skipped."""
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
    """Return the key of a run: its name, and a digest of all that decides its result (`config` and `more`).

    Settings at their default are not in the digest. Otherwise each new setting of the package would change the keys of
    all runs, and these would be run again for nothing.
    """
    bases = ["second base"] if config.model.type == "shapes" else []
    if config.model.type == "shapes-first":  # recorded under the name that it had when there was no other
        rewards = tuple(part.model_copy(update={"type": part.type.removesuffix("-first")}) for part in config.rewards)
        model = config.model.model_copy(update={"type": "shapes"})
        config = config.model_copy(update={"model": model, "rewards": rewards})
    decides = " ".join([config.model_dump_json(exclude_defaults=True), *map(str, more), *bases])
    return f"{name}-{blake2b(decides.encode(), digest_size=4).hexdigest()}"


def rounded(value: Any) -> Any:
    """Return a JSON value in which every float is rounded to `DIGITS` significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list) else value
