"""Trackers, which record the metrics of a run in a file or service. A resumed run continues its curves, and each step
occurs once."""

import io
import json
import math
import secrets
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from PIL import Image

from sage_grpo.config import ConfigError
from sage_grpo.errors import UserError
from sage_grpo.files import atomic_write
from sage_grpo.runs.folder import RunFolder
from sage_grpo.runs.read import current_metric
from sage_grpo.runs.tracker import JSONL, TRACKERS, TrackedRun, Tracker, check_tracker, tracker
from sage_grpo.suggest import did_you_mean
from sage_grpo.videos import frame_rate, read_mp4

PROJECT = "sage-grpo"


class MissingExtra(UserError, ImportError):
    """Raised when a recipe names a tracker whose package is not installed."""


def _need(package: str, module: str = "") -> Any:
    """Return a tracker's package, or a module of it, imported only now because few runs need it."""
    try:
        return import_module(module or package)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != package:
            raise  # the package is there but broken: its own error says more
        raise MissingExtra(
            f"tracker {package!r} needs the package {package}: pip install 'sage-grpo[{package}]'"
        ) from error


def _rows(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield every line of a log with its content. A last line that a kill left torn is left out."""
    lines = path.read_bytes().rstrip(b"\n").split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            float(row["step"])
        except (ValueError, TypeError, KeyError):
            if number == len(lines):
                return
            raise ValueError(
                f"{path}, line {number} is not a line of metrics: {line[:60]!r}; remove it or move the file away"
            ) from None
        yield line, row


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return one dictionary per line of a log. Metrics from logs of earlier versions get their current names."""
    return [{current_metric(key): value for key, value in row.items()} for _, row in _rows(path)]


class JsonlTracker:
    """A tracker that writes a file with one JSON object per iteration. The file can be read during the run.

    An existing file is continued. Its lines from step `resume_at` on are removed, because the run repeats these steps.
    """

    def __init__(self, path: Path, resume_at: int | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            lines = [line + b"\n" for line, row in _rows(path) if resume_at is None or row["step"] < resume_at]
            atomic_write(path, b"".join(lines))
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        if reserved := {"step", "time"} & metrics.keys():
            raise ValueError(f"{sorted(reserved)} are columns of every line; give the metric another name")
        # JSON has no NaN or infinity, and a reader in another language would stumble over Python's.
        numbers = {key: value if math.isfinite(value) else None for key, value in metrics.items()}
        self._file.write(json.dumps({"step": step, "time": time.time(), **numbers}) + "\n")
        self._file.flush()

    def video(self, step: int, name: str, path: Path) -> None:
        """Do nothing: the video's file is its own record."""

    def close(self) -> None:
        self._file.close()


@tracker("tensorboard")
class TensorBoardTracker:
    """A tracker that writes the files of TensorBoard into the run folder."""

    def __init__(self, run: TrackedRun) -> None:
        folder = str(RunFolder(run.folder).tensorboard)
        self._proto = _need("tensorboard", "tensorboard.compat.proto.summary_pb2")
        self._writer = _need("tensorboard", "torch.utils.tensorboard").SummaryWriter(folder, purge_step=run.resume_at)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        for key, value in metrics.items():
            self._writer.add_scalar(key, value, step)
        self._writer.flush()

    def video(self, step: int, name: str, path: Path) -> None:
        """Log a video as an animated GIF, which TensorBoard shows; `add_video` would need moviepy for the same."""
        first, *rest = [Image.fromarray(frame) for frame in read_mp4(path)]
        gif = io.BytesIO()
        first.save(gif, "GIF", save_all=True, append_images=rest, duration=round(1000 / frame_rate(path)), loop=0)
        image = self._proto.Summary.Image(
            height=first.height, width=first.width, colorspace=3, encoded_image_string=gif.getvalue()
        )
        summary = self._proto.Summary(value=[self._proto.Summary.Value(tag=name, image=image)])
        self._writer.file_writer.add_summary(summary, step)

    def close(self) -> None:
        self._writer.close()


def _run_id(folder: Path, package: str) -> str:
    """Return the identifier of a run: the same for every start in this folder, different for every folder."""
    path = folder / f"{package}_run_id"
    if not path.exists():
        atomic_write(path, secrets.token_hex(4).encode())
    return path.read_text().strip()


@tracker("wandb")
class WandbTracker:
    """A tracker that logs to wandb: online, offline or disabled, as the environment variable WANDB_MODE says.

    wandb itself ignores steps that a resumed run repeats.
    """

    def __init__(self, run: TrackedRun) -> None:
        self._wandb = _need("wandb")
        self._run = self._wandb.init(
            project=PROJECT,
            name=run.name,
            id=_run_id(run.folder, "wandb"),
            resume="allow",
            dir=str(run.folder),
            config=run.config,
            settings=self._wandb.Settings(console="off"),  # else every redraw of the progress display is a log line
        )

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self._run.log(metrics, step=step)

    def video(self, step: int, name: str, path: Path) -> None:
        self._run.log({name: self._wandb.Video(str(path), format="mp4")}, step=step)

    def close(self) -> None:
        self._run.finish()


@tracker("trackio")
class TrackioTracker:
    """A tracker that logs to trackio: to its local store, which `trackio show` displays, by default.

    If the environment variable TRACKIO_SPACE_ID names a Space of Hugging Face, trackio logs there.
    """

    def __init__(self, run: TrackedRun) -> None:
        self._trackio = _need("trackio")
        # trackio resumes by name, so the name must be this folder's own.
        unique = f"{run.name}-{_run_id(run.folder, 'trackio')}"
        self._run = self._trackio.init(project=PROJECT, name=unique, config=run.config, resume="allow", embed=False)
        # trackio keeps both values of a repeated step. A resumed run repeats its steps exactly: skip them.
        self._seen = run.folder / "trackio_last_step"
        self._done = int(self._seen.read_text()) if self._seen.exists() else -1

    def log(self, step: int, metrics: dict[str, float]) -> None:
        if step > self._done:
            self._run.log(metrics, step=step)
            atomic_write(self._seen, str(step).encode())

    def video(self, step: int, name: str, path: Path) -> None:
        if step > self._done:
            self._run.log({name: self._trackio.Video(path)}, step=step)

    def close(self) -> None:
        self._trackio.finish()  # the module's: it also forgets the run, which would else be finished again at exit


def tracker_names() -> list[str]:
    """Return the names that `run.trackers` may have: those that ship, and those that modules of the run registered."""
    return sorted([JSONL, *TRACKERS])


def _opened(kind: str, run: TrackedRun) -> Tracker:
    made = TRACKERS[kind](run)
    check_tracker(kind, made)
    return made


def make_trackers(
    names: Sequence[str], folder: Path, *, config: dict[str, Any], name: str, resume_at: int | None
) -> list[Tracker]:
    """Open and return the trackers of a run. The first one writes `metrics.jsonl`, whatever `names` lists.

    If a tracker cannot be opened, those that are open are closed again.

    Args:
        names: Kinds of trackers, such as tensorboard.
        folder: The run folder.
        config: Settings of the run, which online trackers show.
        name: Name of the run in online trackers.
        resume_at: First step that this start of the run will log. Steps from there on that an earlier start logged are
            removed.
    """
    for kind in names:
        if kind not in tracker_names():
            raise ConfigError(f"unknown tracker {kind!r}; {did_you_mean(kind, tracker_names())}")
    folder.mkdir(parents=True, exist_ok=True)
    run = TrackedRun(folder, name, config, resume_at)
    trackers: list[Tracker] = [JsonlTracker(RunFolder(folder).log, resume_at)]
    try:
        for kind in dict.fromkeys(names):
            if kind != JSONL:
                trackers.append(_opened(kind, run))
    except BaseException:
        for tracker in trackers:
            tracker.close()
        raise
    return trackers
