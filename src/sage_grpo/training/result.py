"""The outcome of a run."""

import math
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from sage_grpo.config import RecipeConfig
from sage_grpo.core.callback import Metrics


@dataclass(frozen=True)
class Result:
    """The outcome of a run."""

    folder: Path
    """The run folder."""
    iterations: int
    """Number of iterations that are done, those before a resume included."""
    first: Metrics
    """Metrics of the first iteration after the start or resume, such as `reward/mean`."""
    last: Metrics
    """Metrics of the last iteration."""
    seconds: float
    """Seconds since the start or resume."""
    stop_reason: str | None = None
    """Why the run stopped early; None if all iterations are done."""
    alarms: list[str] = field(default_factory=list)
    """Sentences of the drift gauge about crossed limits."""


def summarize(result: Result, config: RecipeConfig, console: Console) -> None:
    """Print the outcome of a run: iterations, rewards before and after, KL, the last alarms and the folder."""
    first, last = result.first, result.last
    done = f"{result.iterations} of {config.run.iterations} iterations in {result.seconds:.0f} s"
    console.print(f"\n[bold]{'Stopped: ' + result.stop_reason if result.stop_reason else 'Done'}[/] ({done})")
    for name in (key for key in last if key.startswith("reward/") and key not in ("reward/std", "reward/failed")):
        before, now = first.get(name, math.nan), last[name]
        console.print(f"  {name:<16} {before:8.3f} → {now:8.3f}  ({now - before:+.3f})", highlight=False)
    for name, text in (("kl/penalty", "KL"), ("clip_frac", "clipped"), ("skipped_updates", "skipped updates")):
        if name in last:
            console.print(f"  {text:<16} {last[name]:.3g}", highlight=False)
    for alarm in result.alarms[-5:]:
        console.print(f"  [yellow]alarm[/] {alarm}", highlight=False)
    console.print(f"  metrics, samples and checkpoints are in {result.folder}", highlight=False)
    console.print(f"  curves, videos, alarms and cost on one page: sage-grpo report {result.folder}", highlight=False)
