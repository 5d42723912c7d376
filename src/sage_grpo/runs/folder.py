"""The layout of a run folder: the one place that knows where each of its files is."""

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
        """Return the file with the monitors' scores of the videos."""
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
        """Return the recipe of the run's first part; a resumed run has more of them, see `parts`."""
        return self.path / RECIPE

    @property
    def log(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def speeds(self) -> Path:
        """Return the file with the speeds that devices reached at the start, written with `run.check_gpus`."""
        return self.path / "devices.json"

    @property
    def end(self) -> Path:
        """Return the file that says how the run ended. It does not exist while the run is active."""
        return self.path / "end.json"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def conditions(self) -> Path:
        """Return the folder of encoded prompts."""
        return self.path / "conditions"

    @property
    def hangs(self) -> Path:
        """Return the folder with the stacks of processes that stood still."""
        return self.path / "hang"

    @property
    def lock(self) -> Path:
        """Return the lock file, which is held by the run that writes here."""
        return self.path / ".lock"

    @property
    def exists(self) -> bool:
        return self.recipe.is_file()

    def sample(self, iteration: int) -> SampleFolder:
        return SampleFolder(self.path / "samples" / f"{iteration:06d}")

    def samples(self) -> dict[int, SampleFolder]:
        """Return the folders of sample videos by iteration."""
        folders = sorted((self.path / "samples").glob("[0-9]*"))
        return {int(path.name): SampleFolder(path) for path in folders if path.name.isdigit()}

    def part(self, name: str, number: int) -> Path:
        """Return a file of which each start of the run writes its own: config.yaml, config-1.yaml, …

        `number` is 0 for the first start.
        """
        stem, dot, ending = name.partition(".")
        return self.path / (f"{stem}-{number}{dot}{ending}" if number else name)

    def parts(self, name: str) -> list[Path]:
        stem, _, ending = name.partition(".")
        pattern = re.compile(rf"{stem}(?:-(\d+))?\.{ending}")
        by_number = {int(m[1] or 0): p for p in self.path.glob(f"{stem}*") if (m := pattern.fullmatch(p.name))}
        return [by_number[i] for i in sorted(by_number)]

    def checkpoints(self, config: RecipeConfig) -> str:
        """Return where the checkpoints are: `run.checkpoints` if the recipe sets it, else a folder inside this one.

        This folder may have been moved since the run; a place that the recipe sets has not.
        """
        return config.run.checkpoints or str(self.path / CHECKPOINTS)


def is_run(path: Path) -> bool:
    """Return whether a path is a run folder or a checkpoint of one, and not a recipe."""
    return RunFolder(path).exists or path.name.startswith(STEP)


def split(path: Path) -> tuple[RunFolder, str | None]:
    """Return the run folder of a path, and the checkpoint's name if the path is one of its checkpoints, else None."""
    return (RunFolder(path.parent.parent), path.name) if path.name.startswith(STEP) else (RunFolder(path), None)
