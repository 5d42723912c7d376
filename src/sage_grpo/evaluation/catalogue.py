"""Every built-in scorer with what it scores, takes and needs. Their files are imported, no weights are loaded."""

import ast
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from inspect import Parameter, getdoc
from pathlib import Path
from typing import Any

import sage_grpo
from sage_grpo import registry
from sage_grpo.config import ConfigError
from sage_grpo.registry import resolve_reward
from sage_grpo.training import build


@dataclass(frozen=True)
class Entry:
    name: str
    summary: str
    scores: tuple[str, ...] | None = None  # none: known only when it is built, or installed
    groupwise: bool = False
    required: tuple[str, ...] = ()  # options
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of the other options
    presets: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    missing: str | None = None  # why it cannot be imported
    install: str | None = None  # the line that mends it
    downloads: bool = False  # its weights come from the hub unless a folder is named
    laboratory: bool = False  # for the laboratory's clips alone

    @property
    def ready(self) -> bool:
        """Can score any video here and now, with nothing said and nothing fetched."""
        return not (self.missing or self.required or self.downloads or self.laboratory)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"installed": not self.missing, "ready": self.ready}


def entry(name: str, alone: bool = True) -> Entry:
    """`alone`: the only scorer of its file, which then says what it is in its first line."""
    module = registry.rewards()[name].split(":")[0]
    try:
        found = resolve_reward(name)
    except ConfigError as error:
        library = getattr(error.__cause__, "name", None)
        return Entry(name, _first_line(_doc(module)), missing=str(error), install=build.install_line(library))
    options = build.parameters(found, found)
    return Entry(
        name,
        _first_line(_doc(module) if alone else getdoc(found) or _doc(module)),
        scores=tuple(found.names) or None,
        groupwise=found.groupwise,
        required=tuple(option for option, p in options.items() if p.default is Parameter.empty),
        defaults={option: p.default for option, p in options.items() if p.default is not Parameter.empty},
        presets=dict(found.presets),
        downloads="revision" in options,
        laboratory=found.laboratory,
    )


def _doc(module: str) -> str:
    """From the file itself: what it imports may be missing."""
    file = Path(sage_grpo.__path__[0], *module.split(".")[1:]).with_suffix(".py")
    return ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""


def _first_line(text: str) -> str:
    return text.strip().split("\n")[0]


def catalogue() -> list[Entry]:
    shared = Counter(target.split(":")[0] for target in registry.rewards().values())
    return [entry(name, shared[target.split(":")[0]] == 1) for name, target in registry.rewards().items()]
