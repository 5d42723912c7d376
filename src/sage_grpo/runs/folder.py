"""The layout of a run folder. The path of every file in it is defined here, and nowhere else."""

import re
from dataclasses import dataclass
from pathlib import Path

from sage_grpo.config import RecipeConfig

RECIPE, ENVIRONMENT = "config.yaml", "environment.json"
CHECKPOINTS = "checkpoints"
STEP = "step-"  # begins the name of a checkpoint


@dataclass(frozen=True)
class SampleFolder:
    """The folder with the sample videos of one iteration."""

    path: Path

    @property
    def prompts(self) -> Path:
        return self.path / "prompts.json"

    @property
    def scores(self) -> Path:
        """Return the path of the file with the scores that monitors gave the videos."""
        return self.path / "scores.json"

    @property
    def sheet(self) -> Path:
        return self.path / "sheet.png"

    def video(self, number: int) -> Path:
        return self.path / f"{number:02d}.mp4"

    def videos(self) -> list[Path]:
        return sorted(self.path.glob("[0-9]*.mp4"))


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @property
    def recipe(self) -> Path:
        """Return the path of the recipe of the run's first start. `parts` returns those of all starts."""
        return self.path / RECIPE

    @property
    def log(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def speeds(self) -> Path:
        """Return the path of the file with the measured speeds of all devices. Runs with `run.check_gpus` write it."""
        return self.path / "devices.json"

    @property
    def end(self) -> Path:
        """Return the path of the file that says how the run ended. This file does not exist while the run is active."""
        return self.path / "end.json"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def conditions(self) -> Path:
        """Return the folder in which the run stores encoded prompts, unless `tuning.conditions` names another."""
        return self.path / "conditions"

    @property
    def hangs(self) -> Path:
        """Return the folder with the stacks of processes that hung, and the tracebacks of processes that failed."""
        return self.path / "hang"

    @property
    def lock(self) -> Path:
        """Return the path of the lock file. The run that writes into this folder holds this lock."""
        return self.path / ".lock"

    @property
    def exists(self) -> bool:
        return self.recipe.is_file()

    def sample(self, iteration: int) -> SampleFolder:
        return SampleFolder(self.path / "samples" / f"{iteration:06d}")

    def samples(self) -> dict[int, SampleFolder]:
        """Return the folders with sample videos, by iteration."""
        folders = sorted((self.path / "samples").glob("[0-9]*"))
        return {int(path.name): SampleFolder(path) for path in folders if path.name.isdigit()}

    def part(self, name: str, number: int) -> Path:
        """Return the path of a file that each start of the run writes for itself: config.yaml, config-1.yaml, ….

        `name` is the file of the first start, and `number` counts the starts from 0.
        """
        stem, dot, ending = name.partition(".")
        return self.path / (f"{stem}-{number}{dot}{ending}" if number else name)

    def parts(self, name: str) -> list[Path]:
        stem, _, ending = name.partition(".")
        pattern = re.compile(rf"{stem}(?:-(\d+))?\.{ending}")
        by_number = {int(m[1] or 0): p for p in self.path.glob(f"{stem}*") if (m := pattern.fullmatch(p.name))}
        return [by_number[i] for i in sorted(by_number)]

    def checkpoints(self, config: RecipeConfig) -> str:
        """Return the folder or URL of the checkpoints: `run.checkpoints` if the recipe sets it, else a folder in here.

        The folder in here is found even if the run folder has been moved since the run.
        """
        return config.run.checkpoints or str(self.path / CHECKPOINTS)


def is_run(path: Path) -> bool:
    """Return whether `path` is a run folder or has the name of a checkpoint in one. A recipe is neither."""
    return RunFolder(path).exists or path.name.startswith(STEP)


def split(path: Path) -> tuple[RunFolder, str | None]:
    """Return the run folder of `path`, and the checkpoint's name if `path` is a checkpoint in the folder, else None."""
    return (RunFolder(path.parent.parent), path.name) if path.name.startswith(STEP) else (RunFolder(path), None)
