"""Reading of a run folder as plain data: settings, columns of the log, sample videos, and state of the run."""

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sage_grpo.config import ConfigError, RecipeConfig
from sage_grpo.config.load import RENAMED_KEYS
from sage_grpo.config.yaml_text import YamlError, read_yaml
from sage_grpo.progress import EmitProgress, no_count
from sage_grpo.runs.folder import ENVIRONMENT, RECIPE, RunFolder
from sage_grpo.suggest import nearest

Column = npt.NDArray[np.float64]
Settings = dict[str, Any]

RENAMED_METRICS = {  # old names, in logs of earlier versions; the next release no longer reads them
    "approx_kl": "kl/penalty",
    "kl_moving": "kl/anchor",
    "kl_stepwise": "kl/old",
}

SILENT = 600.0  # seconds without a line after which a run is taken for dead, or ten of its usual iterations if longer
COUNTS = ("run.iterations", "parallel.processes")
PLACES = {"run.out", "run.checkpoints", "tuning.conditions"}  # where files lie, not what is trained


@dataclass(frozen=True)
class RunRecord:
    """The content of one run folder. In the columns of the log, a value that is missing or not finite is nan."""

    name: str
    folder: Path
    settings: Settings  # flat: kl.anchor, …; of the newest part of a resumed run
    earlier: Settings  # of its first part
    recipe: str  # the file as it is
    environments: Sequence[Mapping[str, Any]]  # one a part
    steps: Column
    times: Column
    columns: Mapping[str, Column]
    torn: int  # lines of the log that could not be read
    end: Mapping[str, Any]
    samples: Mapping[int, Sequence[Path]] = field(default_factory=dict)
    prompts: Sequence[str] = ()
    seen: float = 0.0  # when it was read

    def column(self, key: str) -> Column:
        key = current_metric(key)
        return self.columns.get(key, np.full(len(self.steps), math.nan))

    def has(self, key: str) -> bool:
        key = current_metric(key)
        return key in self.columns and bool(np.isfinite(self.columns[key]).any())

    def setting(self, key: str) -> Any:
        return self.settings.get(key, DEFAULTS.get(key))

    @property
    def processes(self) -> int:
        return int(self.setting("parallel.processes") or 1)

    @property
    def iterations(self) -> int:
        return int(self.steps[-1]) if len(self.steps) else 0

    @property
    def wanted(self) -> int:
        return int(self.setting("run.iterations"))

    @property
    def seed(self) -> Any:
        return self.setting("seed")

    @cached_property
    def starts(self) -> list[float]:
        """Return the recorded times at which the run was started and resumed, in seconds since 1970, sorted."""
        moments = [moment(facts.get("started")) for facts in self.environments]
        return sorted(t for t in moments if math.isfinite(t))

    @cached_property
    def state(self) -> tuple[str, str]:
        """Return the state of the run in one word (failed, stopped, finished, running or silent), and in a sentence."""
        reached = f"{self.iterations} of {self.wanted} iterations"
        if self.end.get("error"):
            return "failed", f"Failed after {reached}: {self.end['error']}"
        if self.end.get("stop_reason"):
            return "stopped", f"Stopped after {reached}: {self.end['stop_reason']}"
        if self.iterations >= self.wanted:
            return "finished", f"Finished: {reached}"
        last = max([*self.times[-1:], *self.starts[-1:]], default=math.nan)
        usual = float(np.median(np.diff(self.times))) if len(self.times) > 1 else 0.0
        quiet = self.seen - last
        if quiet < max(SILENT, 10 * usual):
            return "running", f"Running: {reached}, last heard of {duration(max(quiet, 0))} before this report"
        since = f"silent since {when(last)}" if math.isfinite(last) else "silent"
        return "silent", f"No end was written: {reached}, {since}. Killed, or still at a very long iteration"


def flatten(values: Any, key: str = "") -> Settings:
    """Return nested settings as one dictionary with dotted keys, such as `kl.anchor`.

    In a list of mappings each place is part of the key, such as `rewards.0.type`. Any other list is one value.
    """
    if isinstance(values, Mapping) and (values or not key):
        return {k: v for name, part in values.items() for k, v in flatten(part, f"{key}.{name}".strip(".")).items()}
    if isinstance(values, list) and values and all(isinstance(part, Mapping) for part in values):
        return {k: v for i, part in enumerate(values) for k, v in flatten(part, f"{key}.{i}").items()}
    return {key: values}


DEFAULTS = flatten(RecipeConfig().model_dump(mode="json"))


def moment(text: object) -> float:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return math.nan


def when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def duration(seconds: float) -> str:
    """Format seconds as text, such as 12 s, 3.4 min or 5.6 h."""
    size, unit = next((s, u) for s, u in ((3600, "h"), (60, "min"), (1, "s")) if seconds >= s or s == 1)
    return f"{seconds / size:.0f} {unit}" if unit == "s" else f"{seconds / size:.1f} {unit}"


def current_metric(name: str) -> str:
    """Return the current name of a metric, for its name in the log of this or an earlier version."""
    if name.startswith("steps/kl/"):
        return name.replace("steps/kl/", "steps/kl_penalty/")
    return RENAMED_METRICS.get(name, name)


def read_log(path: Path) -> tuple[Column, Column, dict[str, Column], int]:
    """Return steps, times in seconds since 1970, columns by metric, and the number of unreadable lines of a log.

    All arrays are (steps,), with one value per logged step in rising order. A missing value is nan. If a step occurs
    twice, its last line counts.
    """
    rows: dict[int, dict[str, Any]] = {}
    torn = 0
    for line in path.read_bytes().splitlines() if path.is_file() else []:
        try:
            row = json.loads(line)
            rows[int(row["step"])] = row
        except (ValueError, TypeError, KeyError, OverflowError):  # a step that is no number, or infinite
            torn += bool(line.strip())
    rows = {step: {current_metric(key): value for key, value in row.items()} for step, row in rows.items()}
    order = sorted(rows)
    keys = dict.fromkeys(key for row in rows.values() for key in row)
    columns = {key: np.array([number(rows[step].get(key)) for step in order]) for key in keys}
    times = columns.pop("time", np.full(len(order), math.nan))
    columns.pop("step", None)
    return np.array(order, float), times, columns, torn


def number(value: object) -> float:
    try:
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else math.nan
    except OverflowError:  # a whole number with more than 300 digits
        return math.nan


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def read_recipe(path: Path) -> tuple[Settings, str]:
    """Return the settings of a recipe by dotted key, and the text of the recipe.

    Keys are not checked, because a run of another version may have other keys. Renamed keys get their current names.

    Raises:
        ConfigError: The file is damaged.
    """
    try:
        text = path.read_text(encoding="utf-8")
        values = read_yaml(text)
    except (YamlError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds no settings; restore it from the recipe that the run was started with")
    settings = {RENAMED_KEYS.get(key, key): value for key, value in flatten(values).items()}
    for key in COUNTS:
        if type(count := settings.get(key, 1)) is not int or count < 1:
            raise ConfigError(f"{path}: {key} is {str(count)[:50]!r}, needs a whole number; restore it")
    return settings, text


def read_samples(folder: RunFolder) -> tuple[dict[int, list[Path]], list[str]]:
    """Return the paths of the sample videos by iteration, and the prompts of the newest iteration, one per video."""
    by_iteration = {}
    prompts: list[str] = []
    for iteration, sample in folder.samples().items():
        if videos := sample.videos():
            by_iteration[iteration] = videos
            rows = read_json(sample.prompts)
            if isinstance(rows, list):
                prompts = [str(row.get("prompt", "")) if isinstance(row, dict) else str(row) for row in rows]
    return by_iteration, prompts


def read_run(folder: Path, name: str = "", now: float | None = None) -> RunRecord:
    """Return the content of a run folder, which may have been moved since the run.

    Args:
        folder: The run folder.
        name: Name of the run in reports; by default that of the folder.
        now: Time of the report, in seconds since 1970; by default the current time.

    Raises:
        ConfigError: The folder is not a run, or its recipe is damaged.
    """
    check(folder)
    files = RunFolder(folder)
    recipes = [read_recipe(path) for path in files.parts(RECIPE)]
    facts = [read_json(path) for path in files.parts(ENVIRONMENT)]
    steps, times, columns, torn = read_log(files.log)
    end = read_json(files.end)
    samples, prompts = read_samples(files)
    return RunRecord(
        name=name or folder.resolve().name,
        folder=folder,
        settings=recipes[-1][0],
        earlier=recipes[0][0],
        recipe=recipes[-1][1],
        environments=[f for f in facts if isinstance(f, dict)],
        steps=steps,
        times=times,
        columns=columns,
        torn=torn,
        end=end if isinstance(end, dict) else {},
        samples=samples,
        prompts=prompts,
        seen=time.time() if now is None else now,
    )


def check(folder: Path) -> None:
    """Raise a ConfigError if `folder` is not a run folder. The message names a run nearby, if there is one."""
    if RunFolder(folder).exists:
        return
    inside = [str(path) for path in nearby(folder)]
    if not folder.exists():
        siblings = {p.name: str(p) for p in nearby(folder.parent)}
        close = nearest(folder.name, siblings)
        known = f"; runs beside it: {', '.join(siblings.values())}" if siblings else ""
        raise ConfigError(f"there is no {folder}" + (f"; did you mean {siblings[close]}?" if close else known))
    above = next((p for p in folder.resolve().parents if RunFolder(p).exists), None)
    hint = "give a folder that `sage-grpo train` wrote"
    if above:
        hint = f"it lies in the run {above}: give that"
    elif inside:
        hint = f"runs inside: {' '.join(inside)}"
    what = "is a file, not a run" if folder.is_file() else f"is not a run: there is no {folder / RECIPE}"
    raise ConfigError(f"{folder} {what}; {hint}")


def nearby(folder: Path) -> Iterator[Path]:
    """Yield the first 8 run folders directly inside `folder`, sorted by name."""
    recipes = sorted(folder.glob(f"*/{RECIPE}")) if folder.is_dir() else []
    yield from (path.parent for path in recipes[:8])


def read_runs(folders: Sequence[Path], now: float | None = None, emit: EmitProgress = no_count) -> list[RunRecord]:
    """Return the content of several run folders, each under a name of its own.

    A name is that of the folder, after the names of as many folders above it as are needed to tell the runs apart.
    """
    paths = [folder.resolve() for folder in folders]
    for i, path in enumerate(paths):
        if path in paths[:i]:
            raise ConfigError(f"{folders[i]} is given twice; each run is shown once")
    names = [path.name for path in paths]
    depth = 1
    while len(set(names)) < len(names) and depth < max(len(path.parts) for path in paths):
        depth += 1
        names = ["/".join(path.parts[-depth:]) for path in paths]
    runs = []
    for i, (folder, name) in enumerate(zip(folders, names, strict=True)):
        emit(i, len(folders), name)
        runs.append(read_run(folder, name, now))
    return runs
