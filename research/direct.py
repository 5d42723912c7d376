"""Direct measurements of the base model for `reproduce`, without training. Each is a `Run` of the grid."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from research.grid import KERNELS, MATCHED, run_grid
from research.measure import gradient_by_step, match_exploration, noise_after_a_step, rollout_distances
from research.run_log import key_of
from sage_grpo.config import load_recipe

ROLLOUTS = 1920  # of each kernel at the first look; a claim that is open then gets as many again, at each further one


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
    out: Path, again: Mapping[str, int], workers: int | None = None, console: Console | None = None
) -> dict[str, Any]:
    """Make all direct measurements, and return their values by kind, such as `quality`, and by name.

    `again` has the number of further looks that need more rollouts, by kernel and ending, such as `flow-clean`.
    """
    measures = {
        "noise": {kernel: Measure(f"noise-{kernel}", noise_after_a_step, {"kernel": kernel}) for kernel in KERNELS},
        "gradient": {
            kind: Measure(f"gradient-{kind}", gradient_by_step, {"kernel": "sage", "equalize": kind == "equalized"})
            for kind in ("raw", "equalized")
        },
        "quality": {name: distances(name) for kernel in KERNELS for name in (f"{kernel}-noisy", f"{kernel}-clean")},
        "again": {f"{name}/{i + 1}": distances(name, i + 1) for name, times in again.items() for i in range(times)},
        "matched": {
            kernel: Measure(f"matched-{kernel}", match_exploration, {"kernel": kernel, "reference": reference})
            for kernel, reference in MATCHED.items()
        },
    }
    everything = [measure for part in measures.values() for measure in part.values()]
    answers = iter(run_grid(everything, out, workers, console))
    found = {part: {name: next(answers)["value"] for name in named} for part, named in measures.items()}
    for look, more in found.pop("again").items():
        found["quality"][look.partition("/")[0]] += more
    return found


def distances(name: str, look: int = 0) -> Measure:
    """Return the measurement of how far rollouts end from real clips, for a kernel and ending such as `flow-clean`.

    The first look (0) has `ROLLOUTS` rollouts. Every further look adds as many as all looks before it.
    """
    kernel, _, ending = name.partition("-")
    before = ROLLOUTS * 2 ** (look - 1) if look else 0
    settings = {"kernel": kernel, "noisy_end": ending == "noisy", "first": before, "count": before or ROLLOUTS}
    return Measure(f"distance-{name}", rollout_distances, settings)
