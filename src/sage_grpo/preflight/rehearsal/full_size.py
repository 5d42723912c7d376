"""A rehearsal at full size on this computer: real networks with random weights, on tiny videos.

Memory and seconds are measured by stage. Each stage is a separate process, as in a real run. The memory of a stage is
the system's count, less what the interpreter and its libraries take. It is compared with the plan of the same recipe.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sage_grpo.config import ConfigError, RecipeConfig, dump_recipe, load_recipe
from sage_grpo.distributed.device import HOST
from sage_grpo.preflight.plan.memory import Memory, memory, model_states
from sage_grpo.preflight.plan.probe import decoding, probe
from sage_grpo.preflight.rehearsal.toy import Rehearsal, shrink
from sage_grpo.registry import load_trusted_recipe, resolve_model
from sage_grpo.runs.folder import CHECKPOINTS
from sage_grpo.training import build

STAGES = ("checkpoint", "train", "resume", "export")
RECIPE, ROOM = "recipe.yaml", 1.3  # of the planned memory: loading and the interpreter need some more


@dataclass
class Stage:
    """The measurements of one stage: seconds by step, and the peaks of memory in bytes while it loads and works.

    `interpreter` is what Python and its libraries take. The peaks do not include it.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    interpreter: int = 0
    loading: int = 0
    working: int = 0


@dataclass
class FullSize:
    recipe: str
    parameters: int
    planned: dict[str, int]  # bytes by phase
    stages: dict[str, Stage]
    disk: dict[str, int]  # bytes of what was written
    reduced: list[str]

    @property
    def planned_peak(self) -> int:
        return max(self.planned.values())

    @property
    def ratio(self) -> float:
        """Planned peak of memory over the measured peak of training.

        The stage that resumes is left out, because it also holds the checkpoint that it reads.
        """
        return self.planned_peak / self.stages["train"].working


def at_full_size(config: RecipeConfig, folder: Path, record: Rehearsal) -> RecipeConfig:
    """Return the recipe at toy size on one process, but with the real network, adapters, texts and precision.

    What is reduced is written into `record`.
    """
    adapter = resolve_model(config.model.type)
    if not build.resizable(adapter):
        raise ConfigError(f"--full-size: {config.model.type} is small; `sage-grpo train` runs it as it is")
    values = shrink(config, folder, record, 1).model_dump(mode="json")
    values["model"]["options"] = dict(config.model.options)
    # all is on the host: there is nowhere to offload to
    values["tuning"] |= {"rank": config.tuning.rank, "alpha": config.tuning.alpha, "offload": False}
    values["tuning"]["encode_ahead"] = False  # conditions are made up
    # few passes: a pass of a large network takes seconds here, and memory is the same in all of them
    values["policy"] |= {"batch_size": 1, "prompts_per_iteration": 1, "num_iterations": 1, "reward_weights": None}
    values["sampling"] |= {"steps": min(config.sampling.steps, 2), "window": {}}
    values |= {"rewards": [], "monitors": []}
    record.reduced = [text for text in record.reduced if text.startswith(("processes", "video"))]
    record.reduced += [
        "an iteration: two rollouts of two steps",
        "weights: random ones of the real size; the text encoders are tiny, and their texts random",
    ]
    return load_recipe(values)


def planned_memory(config: RecipeConfig) -> Memory:
    outline = build.outline_model(config)
    return memory(outline, config, probe(config), model_states(config), decoding(config), gpu=False)


def working(plan: Memory) -> dict[str, int]:
    """Return the planned bytes of each phase of an iteration, except encoding, which is not rehearsed."""
    return {name: size for name, size in plan.phases.items() if name != "encode"}


def rehearse_full_size(
    source: str | Path, overrides: Sequence[str], folder: Path, emit: Callable[[str], None] = print
) -> FullSize:
    """Make a checkpoint of the real size, train, resume and export. Return what was measured and planned.

    Raises:
        ConfigError: If this computer has too little memory or disk space, the folder is not empty, or a stage fails.
    """
    config, record = load_trusted_recipe(source, overrides), Rehearsal(str(source))
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; a rehearsal needs a folder of its own")
    folder.mkdir(parents=True, exist_ok=True)
    small = at_full_size(config, folder, record)
    emit("planning")
    released = small.model_copy(update={"model": small.model.model_copy(update={"path": config.model.path})})
    guess = planned_memory(released)
    check_room(released, max(working(guess).values()) - guess.parts["text encoders"], folder)
    (folder / RECIPE).write_text(dump_recipe(small))
    (folder / "released.txt").write_text(str(config.model.path or ""))
    stages = {}
    for i, name in enumerate(STAGES):
        emit(f"{i + 1} of {len(STAGES)}: {name}")
        stages[name] = run_stage(name, folder)
    emit("planning what was measured")
    phases, states = working(planned_memory(small)), model_states(small)
    folders = {"checkpoint": folder / "checkpoint", "saved": folder / "run" / CHECKPOINTS, "export": folder / "export"}
    disk = {name: sum(f.stat().st_size for f in path.rglob("*") if f.is_file()) for name, path in folders.items()}
    return FullSize(str(source), states.parameters, phases, stages, disk, record.reduced)


def check_room(config: RecipeConfig, planned: int, folder: Path) -> None:
    need = round(ROOM * planned)
    there = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") + cached_bytes()
    if need > there:
        raise ConfigError(
            f"--full-size: {config.model.path or config.model.type} needs about {need / 1e9:.0f} GB of memory on the "
            f"{HOST}, and {there / 1e9:.0f} GB are free; rehearse it at toy size, or on a larger machine"
        )
    disk, free = 3 * planned, shutil.disk_usage(folder).free
    if disk > free:
        raise ConfigError(f"--full-size writes about {disk / 1e9:.0f} GB, and {free / 1e9:.0f} GB are free in {folder}")


def cached_bytes() -> int:
    """Return the bytes of files that the system keeps in memory and gives back when needed; 0 if it does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    return sizes.get("Cached", 0)


def run_stage(name: str, folder: Path) -> Stage:
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    done = subprocess.run(
        [sys.executable, "-m", "sage_grpo.preflight.rehearsal.stage_worker", name, str(folder)],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ConfigError(f"--full-size: {name} failed: {(done.stderr or 'it was killed').strip()[-1500:]}")
    return Stage(**json.loads((folder / f"{name}.json").read_text()))


def summary(measured: FullSize) -> dict[str, object]:
    return asdict(measured) | {"planned_peak": measured.planned_peak, "ratio": measured.ratio}
