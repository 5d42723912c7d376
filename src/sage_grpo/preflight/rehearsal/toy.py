"""Recipes at toy size: what is shrunk, what replaces things that this computer lacks, and a record of both.

Sizes, counts and the checkpoint are shrunk. The model's classes, training mode, precision, guidance, trust region,
averaging and optimizer stay the same. So do rewards and prompts, if they are available here.
"""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.exc import InvalidCxxCompiler

from sage_grpo import registry
from sage_grpo.config import ConfigError, ParallelConfig, RecipeConfig, SamplingConfig, load_recipe
from sage_grpo.core.reward import Reward
from sage_grpo.core.scores import Scores
from sage_grpo.core.windows import lowest_trained_level
from sage_grpo.distributed.device import HOST
from sage_grpo.registry import resolve_model, resolve_reward
from sage_grpo.rewards.errors import MissingWeights
from sage_grpo.training import build

PROMPTS = (  # each quotes a text, for scorers that read
    'a red cat runs past a door that says "cat food"',
    'a shop sign that says "open late"',
    'a boat named "anna" on a lake',
    'a kite in the wind with the word "up" on it',
)
RANK, STEPS, BATCH, GROUP = 4, 4, 2, 2
PROCESSES = 4  # the most that a rehearsal starts


@dataclass
class Rehearsal:
    """The record of a rehearsal: seconds by phase, what was reduced or replaced, and facts about the run."""

    recipe: str
    covered: dict[str, float] = field(default_factory=dict)  # phase → seconds
    reduced: list[str] = field(default_factory=list)  # the same at toy size
    stand_ins: list[str] = field(default_factory=list)  # something else in its place
    facts: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.covered[name] = round(time.perf_counter() - started, 2)

    def reduce(self, what: str, small: object, real: object) -> None:
        if small != real:
            self.reduced.append(f"{what}: {small} for {real}")


class StandIn(Reward):
    """A reward that takes the place of one that cannot run here: it returns brightness under the same names.

    It exercises the loop, and judges nothing.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)

    def score(self, videos: torch.Tensor, prompts: Sequence[Any]) -> Scores:
        values = videos.double().flatten(1).mean(1, keepdim=True).expand(-1, len(self.names)) / 255
        return Scores.of(values)


def toy_layout(layout: ParallelConfig, processes: int | None = None) -> ParallelConfig:
    """Return a layout with two processes on each axis that the recipe's layout uses, as far as they suffice.

    `processes` is the number of processes in the new layout; None for the recipe's, but at most `PROCESSES`. Processes
    that share a video come first, then copies of the weights, then shards. Weights are also cut over the processes of a
    video.
    """
    room = processes or min(layout.processes, PROCESSES)
    sequence = 2 if layout.sequence > 1 and room % 2 == 0 else 1
    room //= sequence
    replicate = 2 if layout.replicate > 1 and room % 2 == 0 else 1
    room //= replicate
    shards = room if processes else min(room, 2, layout.replicas // layout.replicate)
    return ParallelConfig(processes=sequence * replicate * shards, sequence=sequence, replicate=replicate)


def shrink(config: RecipeConfig, folder: Path, record: Rehearsal, processes: int | None = None) -> RecipeConfig:
    """Return the recipe at toy size, with its run in `folder`.

    Every change that leaves something out is written into `record`. `processes` is the size of the layout, as in
    `toy_layout`.
    """
    values = config.model_dump(mode="json")
    layout = toy_layout(config.parallel, processes)
    _describe_layout(config.parallel, layout, record)
    values["parallel"] = layout.model_dump()
    _shrink_model(values, config, folder, record)
    _shrink_samples(values["run"], config, record)
    _shrink_sampling(values["sampling"], record)
    policy, tuning, run = values["policy"], values["tuning"], values["run"]
    small = {
        "prompts_per_iteration": max(2, layout.replicas),
        "num_generations": GROUP,
        "batch_size": min(policy["batch_size"], BATCH),
        "num_iterations": min(policy["num_iterations"], 2),
        "num_minibatches": 1,
    }
    rollouts = small["prompts_per_iteration"] * GROUP
    record.reduce("rollouts an iteration", rollouts, config.rollouts)
    policy |= small
    values["kl"]["ref_model_sync_steps"] = 1  # so that the anchor is renewed
    _shrink_tuning(tuning, config, record)
    lower_min_sigma(values)
    record.reduce("min_sigma", tuning["min_sigma"], config.tuning.min_sigma)
    dropped = [name for name in run["trackers"] if name != "tensorboard"]
    record.stand_ins += [f"tracker {name}: left out" for name in dropped]
    run |= {
        "out": str(folder / "run"),
        "iterations": 1,
        "save_every": 1,
        "sample_every": min(run["sample_every"], 1),
        "samples": 1,
        "sample_steps": run["sample_steps"] and STEPS + 1,  # other than those of training
        "resume": "auto",
        "checkpoints": None,
        "trackers": [name for name in run["trackers"] if name not in dropped],
    }
    values["gauge"]["every"] = min(values["gauge"]["every"], 1)
    return load_recipe(values)


def _describe_layout(real: ParallelConfig, small: ParallelConfig, record: Rehearsal) -> None:
    def words(layout: ParallelConfig) -> str:
        parts = {"copies": layout.replicate, "shards": layout.replicas // layout.replicate, "a video": layout.sequence}
        axes = " × ".join(f"{n} {name}" for name, n in parts.items() if n > 1)
        return f"{layout.processes}" + (f" ({axes})" if axes else "")

    record.reduce("processes", words(small), words(real))
    if real.ring > 1:
        record.stand_ins.append("ring: heads are traded instead, for attention on the CPU cannot go round a ring")


def _shrink_model(values: dict[str, Any], config: RecipeConfig, folder: Path, record: Rehearsal) -> None:
    adapter = resolve_model(config.model.type)
    if not build.resizable(adapter):
        return
    model, size = values["model"], adapter.tiny_size
    names = ("frames", "height", "width")
    real = [model[name] or default for name, default in zip(names, adapter.default_size, strict=True)]
    record.reduce("video", "×".join(map(str, size)), "×".join(map(str, real)))
    record.reduced.append(f"checkpoint: a tiny one of the same classes for {model['path']}")
    model |= dict(zip(names, size, strict=True)) | {"path": str(folder / "checkpoint"), "revision": None}
    model["options"] |= dict(adapter.tiny_options)


def _shrink_samples(run: dict[str, Any], config: RecipeConfig, record: Rehearsal) -> None:
    """Shrink sample videos that have a size of their own: twice as high and wide as in training, and a step longer."""
    adapter = resolve_model(config.model.type)
    if not build.resizable(adapter) or not config.run.sample_size:
        return
    frames, height, width = adapter.tiny_size
    small = {"frames": frames + adapter.frame_step, "height": 2 * height, "width": 2 * width}
    run |= {f"sample_{name}": small[name] for name in config.run.sample_size}
    record.reduce("sample videos", [small[name] for name in config.run.sample_size], [*config.run.sample_size.values()])


def _shrink_sampling(sampling: dict[str, Any], record: Rehearsal) -> None:
    record.reduce("steps", min(sampling["steps"], STEPS), sampling["steps"])
    sampling["steps"] = min(sampling["steps"], STEPS)
    stochastic = max(sampling["steps"] - (sampling["last_step"] == "ode"), 1)
    window = sampling["window"]
    if window["size"] is not None:
        window["size"] = min(window["size"], stochastic - 1) or 1
    # places of a longer schedule
    window |= {"range": (0.0, 1.0), "start": "random" if isinstance(window["start"], int) else window["start"]}


def _shrink_tuning(tuning: dict[str, Any], config: RecipeConfig, record: Rehearsal) -> None:
    if tuning["mode"] == "lora":
        record.reduce("rank", min(tuning["rank"], RANK), tuning["rank"])
    tuning |= {"rank": min(tuning["rank"], RANK), "device": HOST.type, "conditions": None}
    if tuning["alpha"]:
        tuning["alpha"] *= tuning["rank"] / config.tuning.rank
    if tuning["compile"] == "inductor" and not _has_compiler():
        record.stand_ins.append("compile: backend aot_eager for inductor (no C++ compiler here; it makes no code)")
        tuning["compile"] = "aot_eager"
    if tuning["attention"]:
        record.stand_ins.append(f"attention: native for {tuning['attention']}, which needs its device")
        tuning["attention"] = None


def lower_min_sigma(values: dict[str, Any]) -> None:
    """Lower the noise level from which adapters act, in place, so that all steps of the short schedule are trained."""
    lowest = lowest_trained_level(SamplingConfig(**values["sampling"]))
    values["tuning"]["min_sigma"] = min(values["tuning"]["min_sigma"], math.floor(1e4 * lowest) / 1e4)


def _has_compiler() -> bool:
    try:
        return bool(get_cpp_compiler())
    except InvalidCxxCompiler:
        return False


def find_prompts(config: RecipeConfig, folder: Path, record: Rehearsal) -> Any:
    adapter = resolve_model(config.model.type)
    if config.prompts.path is None and not build.resizable(adapter):
        return None
    if config.prompts.path and Path(config.prompts.path).expanduser().exists():
        return None  # the recipe's own, checked row by row
    record.stand_ins.append(f"prompts: a few of ours, for there is no {config.prompts.path or 'prompts.path'} here")
    rows: list[dict[str, Any]] = [{"prompt": text} for text in PROMPTS]
    if adapter.needs_image:
        for i, row in enumerate(rows):
            path = folder / f"first-frame-{i}.png"
            if not path.exists():
                Image.linear_gradient("L").rotate(90 * i).convert("RGB").save(path)
            row["image"] = str(path)
    return rows


def find_rewards(config: RecipeConfig, record: Rehearsal) -> tuple[list[Reward], tuple[float, ...]]:
    """Return one reward per entry of the recipe, and the weights of all their scores.

    A reward that cannot be built on this computer is replaced by a `StandIn`, and `record` says so.
    """
    parts: list[Reward] = []
    weights: list[float] = []
    for entry in config.rewards:
        here = {"device": HOST.type} if "device" in entry.options else {}
        moved = entry.model_copy(update={"options": entry.options | here})
        alone = config.model_copy(update={"rewards": (moved,)})
        try:
            part, weight = build.build_rewards(alone)
        except (ConfigError, MissingWeights) as error:
            if ":" not in entry.type and not isinstance(error, MissingWeights):
                raise  # a built-in name that is wrong here is wrong everywhere
            by_name = {} if isinstance(entry.weights, str) else entry.weights
            names = tuple(by_name) or _names_of(entry.type)
            record.stand_ins.append(f"reward {entry.type}: brightness under the names {', '.join(names)} ({error})")
            part, weight = StandIn(names), tuple(by_name.get(name, 1.0) for name in names)
        parts.append(part)
        weights += weight
    return parts, tuple(weights)


def find_monitors(config: RecipeConfig, record: Rehearsal) -> RecipeConfig:
    """Return the recipe without the monitors that cannot be built on this computer.

    `record` gets the monitors that are left out.
    """
    buildable = []
    for entry in config.monitors:
        try:
            build.build_reward(entry)
        except (ConfigError, MissingWeights) as error:
            record.stand_ins.append(f"monitor {entry.type}: left out ({error})")
        else:
            buildable.append(entry)
    return config.model_copy(update={"monitors": tuple(buildable)})


def _names_of(reward: str) -> tuple[str, ...]:
    """Return the names of a reward's scores. A built-in scorer says them without its checkpoint."""
    names = resolve_reward(reward).names if reward in registry.rewards() else ()
    return tuple(names) or (reward,)
