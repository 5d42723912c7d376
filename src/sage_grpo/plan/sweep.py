"""The same recipe on other numbers of GPUs: where more of them stop paying, and why."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sage_grpo.config import ConfigError, RecipeConfig
from sage_grpo.config.load import validate
from sage_grpo.errors import UserError
from sage_grpo.plan.calibration import Calibration
from sage_grpo.plan.estimate import Plan, estimate
from sage_grpo.plan.hardware import GPU
from sage_grpo.progress import EmitProgress, no_count

AXES = {"gpus": "processes", "sp": "sequence", "replicate": "replicate"}
PAYS = 0.7  # videos a GPU-hour below this share of the best do not


@dataclass(frozen=True)
class Cell:
    gpus: int
    sequence: int
    replicate: int
    plan: Plan | None
    videos: int  # an iteration
    why: str  # it does not work, or what holds it back

    @property
    def per_gpu_hour(self) -> float:
        return self.videos / (self.plan.iteration * self.gpus / 3600) if self.plan else 0.0


def parse_sweep(texts: Sequence[str]) -> dict[str, list[int]]:
    """Parse texts such as `gpus=8,64 sp=1,2` into a list of numbers for each axis."""
    axes: dict[str, list[int]] = {}
    for text in " ".join(texts).split():
        axis, _, numbers = text.partition("=")
        if axis not in AXES or not numbers:
            raise ConfigError(f"--sweep {text!r}: use one or more of {', '.join(f'{a}=1,2' for a in AXES)}")
        try:
            axes[axis] = [int(number) for number in numbers.split(",")]
        except ValueError:
            raise ConfigError(f"--sweep {text!r}: {numbers!r} are not whole numbers with commas between them") from None
        if min(axes[axis]) < 1:
            raise ConfigError(f"--sweep {text!r}: numbers start at 1")
    return axes


def laid_out(config: RecipeConfig, gpus: int, sequence: int, replicate: int) -> RecipeConfig:
    """Return the recipe laid out on so many GPUs.

    It keeps its videos per iteration where they divide. Where they do not, batches become smaller, then videos more.
    """
    group, values = config.policy.num_generations, config.model_dump()
    if gpus % (sequence * replicate):
        raise ConfigError(f"{sequence} × {replicate} do not divide {gpus} GPUs")
    replicas = gpus // sequence
    share = config.rollouts / replicas
    batch = min(config.policy.batch_size, max(int(share), 1))
    unit = replicas * batch
    step = unit // math.gcd(unit, group)
    prompts = math.ceil(config.policy.prompts_per_iteration / step) * step
    values["parallel"] |= {"processes": gpus, "sequence": sequence, "replicate": replicate}
    values["policy"] |= {"batch_size": batch, "prompts_per_iteration": prompts}
    return validate(values, RecipeConfig)


def reason(plan: Plan, requested: RecipeConfig) -> str:
    """Return what holds a layout back, in a few words.

    That is its memory, more videos than requested, or what takes most time besides useful arithmetic.
    """
    if not plan.fits:
        return f"needs {plan.memory.peak / 1e9:.0f} GB"
    worst = plan.passes["training"]
    beside = {
        "weights travel": worst.waiting / worst.seconds,
        "tokens travel": worst.tokens / worst.seconds,
        "decode, score": (plan.seconds["decode"] + plan.seconds["score"]) / plan.iteration,
        "samples, gauge": plan.seconds["gauge and samples"] / plan.iteration,
        "text on every GPU": plan.repeated,
    }
    name, share = max(beside.items(), key=lambda item: item[1])
    more = plan.config.rollouts / requested.rollouts
    bottleneck = [f"{name} {share:.0%}"] if share > 0.1 else []
    return ", ".join(([f"{more:g}× videos"] if more > 1 else []) + bottleneck) or "arithmetic"


def sweep(
    config: RecipeConfig,
    gpu: GPU,
    known: Calibration,
    axes: dict[str, list[int]],
    emit: EmitProgress = no_count,
) -> list[Cell]:
    layout = config.parallel
    values = [axes.get(axis, [getattr(layout, name)]) for axis, name in AXES.items()]
    places = [(n, s, r) for s in values[1] for r in values[2] for n in values[0]]
    cells = []
    for done, (gpus, sequence, replicate) in enumerate(places):
        emit(done, len(places), f"{gpus} GPUs, sequence {sequence}")
        try:
            own = laid_out(config, gpus, sequence, replicate)
            plan = estimate(own, gpu, known)
        except UserError as error:
            cells.append(Cell(gpus, sequence, replicate, None, 0, str(error)))
            continue
        cells.append(Cell(gpus, sequence, replicate, plan, own.rollouts, reason(plan, config)))
    return cells


def pays(cell: Cell, cells: Sequence[Cell]) -> bool:
    """Return whether a cell's GPUs make about as many videos per hour as those of the best layout."""
    fits = [other.per_gpu_hour for other in cells if other.plan and other.plan.fits]
    return bool(cell.plan and cell.plan.fits and cell.per_gpu_hour >= PAYS * max(fits))
