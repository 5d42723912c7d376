"""The list of built-in scorers with the scores, options and packages of each.

The list is made without importing a scorer or loading weights.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sage_grpo import registry
from sage_grpo.evaluation.class_reader import REQUIRED, Declared


@dataclass(frozen=True)
class Entry:
    name: str
    summary: str
    scores: tuple[str, ...] | None = None  # none: known only when it is built
    groupwise: bool = False
    required: tuple[str, ...] = ()  # options
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of the other options
    presets: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    missing: str | None = None  # the package that it needs and that is not installed
    install: str | None = None  # the line that installs it
    downloads: bool = False  # its weights come from the hub unless a folder is named
    laboratory: bool = False  # for the laboratory's clips alone

    @property
    def ready(self) -> bool:
        """Whether the scorer can score any video without setup: it needs no option, download or missing package.

        A scorer that is for the laboratory's clips alone is not ready.
        """
        return not (self.missing or self.required or self.downloads or self.laboratory)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"installed": not self.missing, "ready": self.ready}


def entry(name: str, alone: bool = True) -> Entry:
    """Return the entry of the registered scorer `name`.

    Args:
        name: The name of the scorer.
        alone: Whether it is the only scorer of its file. Its summary is then the first line of the file's docstring,
            else of the docstring of the class.
    """
    known = registry.rewards()[name]
    declared, missing = Declared(known.module, known.attribute), known.missing
    options = declared.options()
    return Entry(
        name,
        _first_line(declared.doc if alone else declared.class_doc or declared.doc),
        scores=tuple(declared.value("names")) or None,
        groupwise=declared.value("groupwise"),
        required=tuple(option for option, default in options.items() if default is REQUIRED),
        defaults={option: default for option, default in options.items() if default is not REQUIRED},
        presets=declared.value("presets"),
        missing=missing,
        install=known.install_line if missing else None,
        downloads="revision" in options,
        laboratory=declared.value("laboratory"),
    )


def _first_line(text: str) -> str:
    return text.strip().split("\n")[0]


def catalogue() -> list[Entry]:
    shared = Counter(known.module for known in registry.rewards().values())
    return [entry(name, shared[known.module] == 1) for name, known in registry.rewards().items()]
