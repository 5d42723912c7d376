"""The manifest of an evaluation: its sources, prompts and seeds, for programs that use its videos."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from sage_grpo.evaluation.prompts import Task

NAME = "manifest.json"
VERSION = 1


@dataclass(frozen=True)
class Manifest:
    sources: Sequence[str]
    tasks: Sequence[Task]
    seeds: Sequence[int]

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "sources": list(self.sources),
            "prompts": [task.to_json() for task in self.tasks],
            "seeds": list(self.seeds),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Return the manifest from the content that `to_json` returned.

        Raises:
            ValueError, KeyError or TypeError: The content is no manifest.
        """
        sources, seeds = [str(name) for name in content["sources"]], list(content["seeds"])
        return cls(sources, [Task.from_json(row) for row in content["prompts"]], seeds)
