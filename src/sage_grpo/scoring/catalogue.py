"""Every built-in scorer with what it scores, takes and needs, without loading any."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from sage_grpo import build
from sage_grpo.scoring.sources import REQUIRED, UNKNOWN, definition, libraries, read


@dataclass(frozen=True)
class Entry:
    name: str
    summary: str
    scores: tuple[str, ...] | None  # none: known only when it is built
    groupwise: bool
    required: tuple[str, ...]
    defaults: Mapping[str, Any]
    presets: Mapping[str, Mapping[str, float]]
    extras: tuple[str, ...]
    missing: tuple[str, ...]  # libraries
    install: str | None  # the line that brings them
    downloads: bool  # its weights come from the hub unless a folder is named
    laboratory: bool  # for the laboratory's clips alone

    @property
    def ready(self) -> bool:
        """Can score any video here and now, with nothing said and nothing fetched."""
        return not (self.missing or self.required or self.downloads or self.laboratory)

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "summary": self.summary,
            "scores": self.scores,
            "groupwise": self.groupwise,
            "options": {
                **{name: {"required": True} for name in self.required},
                **{name: {"required": False, "default": value} for name, value in self.defaults.items()},
            },
            "presets": self.presets,
            "extras": self.extras,
            "installed": not self.missing,
            "missing_libraries": self.missing,
            "install": self.install,
            "downloads_weights": self.downloads,
            "laboratory_only": self.laboratory,
            "ready": self.ready,
        }


def entry(name: str, target: str, alone: bool = True) -> Entry:
    """Read from the source. `alone`: the only scorer of its file, which then says what it is in its first line."""
    place, _, attribute = target.partition(":")
    module = read(place)
    found = definition(module, attribute)
    needs = libraries(module, {*build.EXTRAS, *build.LINES})
    missing = sorted(library for library in needs if find_spec(library) is None)
    options, scores, presets = found.options(), found.attribute("names"), found.attribute("presets")
    return Entry(
        name=name,
        summary=_first_line((module.doc if alone else found.doc) or found.doc or module.doc),
        scores=scores if isinstance(scores, tuple) else None,
        groupwise=found.attribute("groupwise") is True,
        required=tuple(option for option, default in options.items() if default is REQUIRED),
        defaults={option: default for option, default in options.items() if default is not REQUIRED},
        presets=presets if presets is not UNKNOWN else {},
        extras=tuple(sorted({build.EXTRAS[library] for library in needs if library in build.EXTRAS})),
        missing=tuple(missing),
        install=install_line(missing),
        downloads="revision" in options,
        laboratory=any(imported.startswith("sage_grpo.worlds") for imported in module.imports()),
    )


def install_line(missing: Sequence[str]) -> str | None:
    extras = sorted({build.EXTRAS[library] for library in missing if library in build.EXTRAS})
    lines = [f"pip install 'sage-grpo[{','.join(extras)}]'"] if extras else []
    return " && ".join(lines + [build.LINES[library] for library in missing if library in build.LINES]) or None


def _first_line(text: str) -> str:
    return text.strip().split("\n")[0]


def catalogue() -> list[Entry]:
    shared = Counter(target.split(":")[0] for target in build.REWARDS.values())
    return [entry(name, target, shared[target.split(":")[0]] == 1) for name, target in build.REWARDS.items()]
