"""What `lab reproduce` measures on the base model itself, without training; each measure is a run of the grid."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from sage_grpo.config import load_recipe
from sage_grpo.lab.grid import KERNELS, MATCHED, run_grid
from sage_grpo.lab.ledger import key_of
from sage_grpo.lab.measure import gradient_by_step, match_exploration, noise_after_a_step, rollout_distances

ROLLOUTS = 1920  # of each kernel at the first look; a claim that is open then gets as many again


@dataclass(frozen=True)
class Measure:
    name: str
    what: Callable[..., Any]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return key_of(f"direct-{self.name}", load_recipe("lab-paper"), *map(str, self.settings.values()))

    def run(self) -> dict[str, Any]:
        torch.set_num_threads(1)
        return {"value": self.what(**self.settings)}


def measure_directly(
    out: Path, again: Collection[str] = (), workers: int | None = None, console: Console | None = None
) -> dict[str, Any]:
    """again: kernels and endings, such as `flow-clean`, of which a second look asks for more rollouts."""
    measures = {
        "noise": {kernel: Measure(f"noise-{kernel}", noise_after_a_step, {"kernel": kernel}) for kernel in KERNELS},
        "gradient": {
            kind: Measure(f"gradient-{kind}", gradient_by_step, {"kernel": "sage", "equalize": kind == "equalized"})
            for kind in ("raw", "equalized")
        },
        "quality": {name: distances(name) for kernel in KERNELS for name in (f"{kernel}-noisy", f"{kernel}-clean")},
        "again": {name: distances(name, first=ROLLOUTS) for name in again},
        "matched": {
            kernel: Measure(f"matched-{kernel}", match_exploration, {"kernel": kernel, "reference": reference})
            for kernel, reference in MATCHED.items()
        },
    }
    everything = [measure for part in measures.values() for measure in part.values()]
    answers = iter(run_grid(everything, out, workers, console))
    found = {part: {name: next(answers)["value"] for name in named} for part, named in measures.items()}
    for name, more in found.pop("again").items():
        found["quality"][name] += more
    return found


def distances(name: str, first: int = 0) -> Measure:
    kernel, _, ending = name.partition("-")
    settings = {"kernel": kernel, "noisy_end": ending == "noisy", "first": first, "count": ROLLOUTS}
    return Measure(f"distance-{name}", rollout_distances, settings)
