"""What an evaluation was made of, for those who use its videos: sources, prompts and seeds."""

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
        """ValueError, KeyError or TypeError where it is no manifest."""
        sources, seeds = [str(name) for name in content["sources"]], list(content["seeds"])
        return cls(sources, [Task.from_json(row) for row in content["prompts"]], seeds)
