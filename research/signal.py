"""`python -m research signal`: at which steps the untrained base's rollouts differ in whether they follow their prompt.

A group teaches nothing about its prompt if all of its videos follow it, or none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from research.grid import run_grid
from research.run_log import key_of
from sage_grpo.config import RecipeConfig, load_recipe
from sage_grpo.core.collect import collect
from sage_grpo.core.comm import SingleProcess
from sage_grpo.core.protocols import Prompt
from sage_grpo.core.windows import Windows
from sage_grpo.files import atomic_write
from sage_grpo.lab.clips import as_clips
from sage_grpo.lab.shapes.reward import ShapesReward
from sage_grpo.lab.shapes.world import all_prompts, fit, parse_prompt
from sage_grpo.training.build import build_model

GROUP = 4
SCALES = (1, 2, 4)
STEPS = {8: tuple(range(7)), 20: (0, 2, 4, 6, 9, 12, 15, 18)}  # places of the one stochastic step, of so many


@dataclass(frozen=True)
class Look:
    """A `Run` of the grid: rollouts of the base, a group for each prompt, with one stochastic step."""

    scale: int
    steps: int
    start: int

    @property
    def config(self) -> RecipeConfig:
        window = f"{{size: 1, start: {self.start}, range: [0, 1]}}"
        sizes = [f"policy.prompts_per_iteration={len(all_prompts())}", f"policy.num_generations={GROUP}"]
        sampling = [f"sampling.steps={self.steps}", f"sampling.window={window}"]
        return load_recipe("lab", [f"model.guidance_scale={self.scale}", *sampling, *sizes, "policy.batch_size=64"])

    @property
    def key(self) -> str:
        return key_of(f"guidance-{self.scale}-steps-{self.steps}-at-{self.start}", self.config)

    def run(self) -> dict[str, Any]:
        torch.set_num_threads(1)
        config, prompts = self.config, [Prompt(text) for text in all_prompts()]
        windows = Windows(config)
        made = collect(build_model(config), ShapesReward(), prompts, config, windows, 0, comm=SingleProcess())
        found = fit(torch.cat([as_clips(batch.frames) for batch in made.videos])).scene
        asked = torch.tensor([parse_prompt(prompt.text) for prompt in made.prompts])
        right = (torch.stack([found.shape, found.colour, found.direction], 1) == asked).all(1).view(-1, GROUP)
        mixed = right.any(1) & ~right.all(1)
        return {
            "scale": self.scale,
            "steps": self.steps,
            "start": self.start,
            "sigma": windows.full.sigma[self.start].item(),
            "mixed": "".join(str(int(group)) for group in mixed),
        }


def as_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table of the shares of groups with both right and wrong videos: one row per step."""
    head = ["steps", "stochastic step", "noise level σ", *(f"guidance {scale}" for scale in SCALES)]
    table = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    share = {(r["steps"], r["start"], r["scale"]): r["mixed"].count("1") / len(r["mixed"]) for r in rows}
    sigma = {(r["steps"], r["start"]): r["sigma"] for r in rows}
    for steps, starts in STEPS.items():
        for start in starts:
            cells = [str(steps), str(start + 1), f"{sigma[steps, start]:.2f}"]
            cells += [f"{share[steps, start, scale]:.0%}".replace("%", "\u00a0%") for scale in SCALES]
            table.append(f"| {' | '.join(cells)} |")
    return "\n".join(table) + "\n"


def signal(out: Path, *, workers: int | None = None, console: Console | None = None) -> list[dict[str, Any]]:
    """Look at all steps and guidance scales, and write results and table.txt into `out`."""
    looks = [Look(scale, steps, start) for steps, starts in STEPS.items() for start in starts for scale in SCALES]
    rows = run_grid(looks, out, workers, console)
    atomic_write(out / "table.txt", as_markdown(rows).encode())
    return rows
