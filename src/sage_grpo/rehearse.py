"""A recipe acted out at toy size: the same classes, two whole iterations, on any computer.

What is shrunk: sizes, counts and the checkpoint, which is made here. What is not: the model's classes, training mode,
precision, guidance, the trust region, optimizer, rewards and prompts where they can be had.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from rich.console import Console

from sage_grpo import build
from sage_grpo.config import ConfigError, RecipeConfig, load_recipe
from sage_grpo.core.protocols import Reward, Scores
from sage_grpo.dist.device import HOST
from sage_grpo.exporting import export_run
from sage_grpo.rewards.errors import MissingWeights
from sage_grpo.sampling import open_source, sample_videos, write_samples
from sage_grpo.trainer import Trainer
from sage_grpo.tuning.export import load_adapters

PROMPTS = ("a red cat runs over the grass", 'a shop sign that says "open late"')
RANK, STEPS, BATCH = 4, 4, 2


@dataclass
class Rehearsal:
    """What happened, in words and seconds."""

    recipe: str
    covered: dict[str, float] = field(default_factory=dict)  # phase → seconds
    stand_ins: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.covered[name] = round(time.perf_counter() - started, 2)


class StandIn:
    """Brightness under the names of a reward that cannot run here: it exercises the loop, it judges nothing."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)

    def score(self, videos: torch.Tensor, prompts: Sequence[Any]) -> Scores:
        values = videos.double().flatten(1).mean(1, keepdim=True).expand(-1, len(self.names)) / 255
        return Scores(values, torch.ones_like(values, dtype=torch.bool))


def shrink(config: RecipeConfig, folder: Path, told: Rehearsal) -> RecipeConfig:
    """The same recipe at toy size. Every change that leaves something out is written into `told`."""
    adapter = build.resolve(config.model.type, build.MODELS, "model")
    values = config.model_dump(mode="json")
    if hasattr(adapter, "tiny"):
        frames, height, width = adapter.tiny_size
        options = values["model"]["options"] | dict(adapter.tiny_options)
        values["model"] |= {"path": str(folder / "checkpoint"), "revision": None, "options": options}
        values["model"] |= {"frames": frames, "height": height, "width": width}
    sampling, policy, tuning = values["sampling"], values["policy"], values["tuning"]
    sampling["steps"] = min(sampling["steps"], STEPS)
    stochastic = max(sampling["steps"] - (sampling["last_step"] == "ode"), 1)
    if sampling["window_size"] is not None:
        sampling["window_size"] = min(sampling["window_size"], stochastic - 1) or 1
        sampling["window_start"] = "random"
    policy |= {"prompts_per_iteration": 2, "num_generations": 2, "batch_size": min(policy["batch_size"], BATCH),
               "num_minibatches": 1, "num_iterations": max(policy["num_iterations"], 2)}  # fmt: skip
    values["kl"]["ref_model_sync_steps"] = 1  # so that the anchor is renewed
    tuning |= {"rank": min(tuning["rank"], RANK), "device": HOST.type, "conditions": None}
    if tuning["alpha"]:
        tuning["alpha"] *= tuning["rank"] / config.tuning.rank
    if tuning["compile"]:
        told.stand_ins.append(
            f"compile: backend aot_eager for {tuning['compile']} (catches graph breaks, makes no code)"
        )
        tuning["compile"] = "aot_eager"
    if tuning["attention"]:
        told.stand_ins.append(f"attention: native for {tuning['attention']}, which needs its device")
        tuning["attention"] = None
    if values["parallel"]["processes"] > 1:
        told.stand_ins.append(f"processes: 1 for {values['parallel']['processes']}")
        values["parallel"] = {"processes": 1, "sequence": 1}
    dropped = [name for name in values["run"]["trackers"] if name != "tensorboard"]
    told.stand_ins += [f"tracker {name}: left out" for name in dropped]
    kept = [name for name in values["run"]["trackers"] if name not in dropped]
    values["run"] |= {"out": str(folder / "run"), "iterations": 1, "save_every": 1, "sample_every": 1, "samples": 1,
                      "resume": "auto", "trackers": kept}  # fmt: skip
    values["gauge"]["every"] = min(values["gauge"]["every"], 1)
    return load_recipe(values)


def find_prompts(config: RecipeConfig, folder: Path, told: Rehearsal) -> Any:
    adapter = build.resolve(config.model.type, build.MODELS, "model")
    if config.prompts.path is None and not hasattr(adapter, "tiny"):
        return None
    if config.prompts.path and Path(config.prompts.path).expanduser().exists():
        return None  # the recipe's own, checked row by row
    told.stand_ins.append(f"prompts: two of ours, for there is no {config.prompts.path or 'prompts.path'} here")
    rows: list[dict[str, Any]] = [{"prompt": text} for text in PROMPTS]
    if getattr(adapter, "needs_image", False):
        for i, row in enumerate(rows):
            path = folder / f"first-frame-{i}.png"
            Image.linear_gradient("L").rotate(90 * i).convert("RGB").save(path)
            row["image"] = str(path)
    return rows


def find_rewards(config: RecipeConfig, told: Rehearsal) -> tuple[list[Reward], tuple[float, ...]]:
    """The recipe's own where they can be built here, one by one."""
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
            given = {} if isinstance(entry.weights, str) else entry.weights
            names = tuple(given) or _names_of(entry.type)
            told.stand_ins.append(f"reward {entry.type}: brightness under the names {', '.join(names)} ({error})")
            part, weight = StandIn(names), tuple(given.get(name, 1.0) for name in names)
        parts.append(part)
        weights += weight
    return parts, tuple(weights)


def find_monitors(config: RecipeConfig, told: Rehearsal) -> RecipeConfig:
    """Without those that cannot be built here."""
    kept = []
    for entry in config.monitors:
        try:
            build.build_reward(entry)
        except (ConfigError, MissingWeights) as error:
            told.stand_ins.append(f"monitor {entry.type}: left out ({error})")
        else:
            kept.append(entry)
    return config.model_copy(update={"monitors": tuple(kept)})


def _names_of(reward: str) -> tuple[str, ...]:
    """A built-in scorer says its names without its checkpoint."""
    found = build.resolve(reward, build.REWARDS, "reward") if reward in build.REWARDS else None
    return tuple(getattr(found, "names", ())) or (reward,)


def rehearse(
    source: str | Path, overrides: Sequence[str], folder: Path, console: Console, tell: Callable[[str], None] = print
) -> Rehearsal:
    """Two iterations with a restart between them, then export and a look; raises what a real run would raise."""
    config, told = load_recipe(source, overrides), Rehearsal(str(source))
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; a rehearsal needs a folder of its own")
    folder.mkdir(parents=True, exist_ok=True)
    small = find_monitors(shrink(config, folder, told), told)
    prompts = find_prompts(config, folder, told)
    rewards, weights = find_rewards(config, told)
    if small.policy.reward_weights is None:
        small = small.model_copy(update={"policy": small.policy.model_copy(update={"reward_weights": weights})})

    adapter = build.resolve(config.model.type, build.MODELS, "model")
    if hasattr(adapter, "tiny"):
        tell("1 of 4: making a tiny checkpoint of the same classes")
        with told.phase("checkpoint of the same classes"):
            adapter.tiny().save_pretrained(str(folder / "checkpoint"))

    def trainer(iterations: int) -> Trainer:
        run = small.run.model_copy(update={"iterations": iterations})
        return Trainer(config=small.model_copy(update={"run": run}), rewards=rewards, prompts=prompts, console=console)

    tell("2 of 4: first iteration: rollout, decode, rewards, update, anchor, checkpoint")
    with told.phase("load, rollout, decode, rewards, update, anchor, checkpoint"):
        first = trainer(1)
        start = {name: p.detach().clone() for name, p in first.model.module.named_parameters() if p.requires_grad}
        first.train()
    moved = [
        name for name, p in first.model.module.named_parameters() if name in start and not torch.equal(p, start[name])
    ]
    if not moved:
        raise ConfigError(
            "the update changed no weight: all rewards of a group are equal, or optimizer.lr is too small"
        )
    told.facts |= {"trained parameters": sum(v.numel() for v in start.values()), "changed tensors": len(moved),
                   "of tensors": len(start), "updates": first.loop.updates}  # fmt: skip
    del first

    tell("3 of 4: resume and second iteration")
    with told.phase("resume, second iteration"):
        second = trainer(2)
        result = second.train()
    told.facts |= {"iterations": result.iterations, "alarms": len(result.alarms)}

    tell("4 of 4: export and sample")
    with told.phase("export"):
        written = export_run(folder / "run", folder / "export")
    told.facts["export"] = written["kind"]
    with told.phase("load the export"):
        told.facts["export loads"] = _load_export(small, folder)
    with told.phase("sample"):
        opened = open_source(folder / "run")
        chosen = list(second.prompts(0, 1))
        write_samples(folder / "samples", chosen, [("rehearsed", sample_videos(opened, chosen, 0))], 0)
    return told


def _load_export(config: RecipeConfig, folder: Path) -> str:
    """As a user would: the whole checkpoint by its path, adapters into the base checkpoint."""
    adapter = build.resolve(config.model.type, build.MODELS, "model")
    if not hasattr(adapter, "tiny"):
        adapter.from_pretrained(str(folder / "export"))
        return "as a recipe's model"
    pipeline = adapter.pipeline_class
    if config.tuning.mode == "full":
        pipeline.from_pretrained(str(folder / "export"))
    else:
        load_adapters(pipeline.from_pretrained(str(folder / "checkpoint")), folder / "export")
    return "by plain diffusers"
