"""The steps that all commands of `sage-grpo lab` share: evaluate the base model, train it, and evaluate it again."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sage_grpo.config import RecipeConfig, load_recipe
from sage_grpo.core.video_model import VideoModel
from sage_grpo.training.build import build_model
from sage_grpo.training.callbacks import averaged
from sage_grpo.training.trainer import Trainer

E = TypeVar("E")
E_co = TypeVar("E_co", covariant=True)


class Evaluate(Protocol[E_co]):
    """A function that makes `samples` videos of a model and returns their evaluation.

    It calls `emit` with the number of videos made so far.
    """

    def __call__(
        self, model: VideoModel, config: RecipeConfig, samples: int, *, emit: Callable[[int], None]
    ) -> E_co: ...


@dataclass(frozen=True)
class BeforeAfter(Generic[E]):
    """Evaluations of the base model and of the trained model, on the same prompts and seeds.

    `seconds` (wall clock) and `cpu_seconds` are for both evaluations and the training together.
    """

    config: RecipeConfig
    before: E
    after: E
    iterations: int
    seconds: float
    cpu_seconds: float


def train_between(
    recipe: str, settings: Sequence[str], evaluate: Evaluate[E], samples: int, *, doing: str, console: Console
) -> BeforeAfter[E]:
    """Evaluate the base model, train it with a shipped recipe, and evaluate it again on the same prompts and seeds.

    `settings` are overrides of the recipe. `doing` says in progress messages how videos are judged: looking at, reading
    or listening to.
    """
    started, cpu = time.perf_counter(), time.process_time()
    config = load_recipe(recipe, list(settings))
    console.print(f"1/3 {doing} {samples} videos of the base model", highlight=False)
    with counting(console, samples) as emit:
        before = evaluate(build_model(config), config, samples, emit=emit)
    console.print(f"2/3 training for {config.run.iterations} iterations", highlight=False)
    trainer = Trainer(config=config, console=console)
    trainer.train()
    console.print(f"3/3 {doing} the trained model's videos of the same prompts and seeds", highlight=False)
    with counting(console, samples) as emit, averaged(trainer.loop):
        after = evaluate(trainer.loop.model, config, samples, emit=emit)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
    return BeforeAfter(config, before, after, trainer.loop.iteration, seconds, cpu_seconds)


@contextmanager
def counting(console: Console, total: int) -> Iterator[Callable[[int], None]]:
    columns = TextColumn("  videos"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda done: progress.update(task, completed=done)
