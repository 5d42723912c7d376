"""The prompts of an evaluation with ids and tags: from a file, a set of the package, or the model's own."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from textwrap import shorten
from typing import Any, Self

from sage_grpo.config import ConfigError
from sage_grpo.core.protocols import Prompt
from sage_grpo.data.prompts import PromptError, open_prompts
from sage_grpo.training import build

SHIPPED = "videos"
ID = re.compile(r"[\w.-]*\w[\w.-]*")  # becomes a part of file names
LONGEST_ID = 100
TAG = "tag."  # begins the columns of tags where a format has no objects, such as csv


@dataclass(frozen=True)
class Task:
    """A prompt to make videos of, with an id for file names and tags to group results by."""

    id: str
    prompt: Prompt
    tags: Mapping[str, str]

    @property
    def short(self) -> str:
        return shorten(self.prompt.text, 48, placeholder=" …")

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "text": self.prompt.text, "tags": dict(self.tags)}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        return cls(str(row["id"]), Prompt(str(row["text"])), dict(row.get("tags") or {}))


def shipped_sets() -> list[str]:
    folder = files("sage_grpo.data").joinpath("prompt_sets")
    return sorted(item.name.removesuffix(".jsonl") for item in folder.iterdir() if item.name.endswith(".jsonl"))


def find_tasks(source: str | None, model: str, tags: Sequence[str] = (), limit: int | None = None) -> list[Task]:
    """Return the prompts of an evaluation, with their ids and tags.

    Args:
        source: A prompt file, or the name of a set that ships with the package. None takes the model's own prompts if
            it has any, else the set `videos`.
        model: The type of the model, as `model.type` in recipes.
        tags: Conditions NAME=VALUE. Only prompts that meet them are returned. A name that is given twice allows either
            value.
        limit: Most prompts to return; None for all.
    """
    texts = build.own_prompts(model) if source is None else []
    if texts:
        tags_of = build.model_class(model).prompt_tags
        tasks = [_task(i, Prompt(text, {"tags": tags_of(text)}), len(texts), model) for i, text in enumerate(texts)]
    else:
        tasks = _read(source or SHIPPED)
    return _having(tasks, tags)[:limit]


def _read(source: str) -> list[Task]:
    if source in shipped_sets() and not Path(source).is_file():
        with as_file(files("sage_grpo.data").joinpath("prompt_sets", f"{source}.jsonl")) as path:
            return _rows(path)
    if not Path(source).suffix and not Path(source).exists():
        raise PromptError(f"{source}: neither a file nor a set that ships ({', '.join(shipped_sets())})")
    return _rows(Path(source))


def _rows(path: Path) -> list[Task]:
    prompts = open_prompts(path, shuffle=False)
    tasks = [_task(i, prompts(i, 1)[0], len(prompts), str(path)) for i in range(len(prompts))]
    rows: dict[str, int] = {}
    for i, task in enumerate(tasks):
        if task.id in rows:
            raise PromptError(f"{path}: prompts {rows[task.id] + 1} and {i + 1} share the id {task.id!r}; give others")
        rows[task.id] = i
    return tasks


def _task(number: int, prompt: Prompt, total: int, where: str) -> Task:
    columns = dict(prompt.columns)
    name = str(columns.pop("id", "") or f"{number:0{len(str(total - 1))}d}")
    if not ID.fullmatch(name) or len(name) > LONGEST_ID:
        raise PromptError(
            f"{where}: the id {name[:LONGEST_ID]!r} is not fit for a file's name; use at most {LONGEST_ID} letters, "
            "digits, . _ and -"
        )
    given = columns.pop("tags", None) or {}
    if isinstance(given, str):  # a parquet or csv file may hold the object as text
        try:
            given = json.loads(given)
        except ValueError:
            given = None
    if not isinstance(given, Mapping):
        raise PromptError(f'{where}: tags of prompt {name} are no object; write such as {{"subject": "animal"}}')
    tags = {str(key): str(value) for key, value in given.items() if value is not None}
    tags |= {key.removeprefix(TAG): str(columns.pop(key)) for key in list(columns) if key.startswith(TAG)}
    return Task(name, Prompt(prompt.text, columns), tags)


def _having(tasks: list[Task], tags: Sequence[str]) -> list[Task]:
    """Return the tasks that have every requested tag NAME=VALUE. A name that is given twice allows either value."""
    allowed: dict[str, set[str]] = {}
    for text in tags:
        key, sign, value = text.partition("=")
        known = sorted({task.tags[key] for task in tasks if key in task.tags})
        if not sign or not known:
            names = ", ".join(sorted({name for task in tasks for name in task.tags})) or "none"
            raise ConfigError(f"--tag {text}: write NAME=VALUE; these prompts have the tags {names}")
        build.refuse_unknown([value], set(known), f"--tag {key}: no prompt has the value {{!r}}")
        allowed.setdefault(key, set()).add(value)
    chosen = [task for task in tasks if all(task.tags.get(key) in values for key, values in allowed.items())]
    if not chosen:
        raise ConfigError(f"no prompt has {' and '.join(tags)} together; leave one out")
    return chosen
