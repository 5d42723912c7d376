"""Plans of one recipe on different numbers of GPUs: where more GPUs stop paying, and why."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sage_grpo.config import ConfigError, RecipeConfig
from sage_grpo.config.load import validate
from sage_grpo.errors import UserError
from sage_grpo.preflight.plan.calibration import Calibration
from sage_grpo.preflight.plan.estimate import Plan, estimate
from sage_grpo.preflight.plan.hardware import GPU
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
    """Return the numbers to try for each axis: `gpus=8,64 sp=1,2` becomes `{'gpus': [8, 64], 'sp': [1, 2]}`."""
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
    """Return the recipe for a number of GPUs, with `sequence` GPUs per video and `replicate` copies of the weights.

    The number of videos per iteration stays the same if the GPUs can divide it evenly. Otherwise batches become smaller
    first, and then videos are added.
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
    """Return in a few words what limits a layout.

    If memory does not suffice, return how much is needed. Else name added videos, and the largest cost besides useful
    arithmetic if its share is above 10 %. If there is neither, return `arithmetic`.
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
    """Return whether a layout fits into memory and makes about as many videos per GPU-hour as the best one.

    About means at least the share `PAYS` of the most videos per GPU-hour of all `cells` that fit into memory.
    """
    fits = [other.per_gpu_hour for other in cells if other.plan and other.plan.fits]
    return bool(cell.plan and cell.plan.fits and cell.per_gpu_hour >= PAYS * max(fits))
