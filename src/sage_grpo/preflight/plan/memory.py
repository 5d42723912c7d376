"""The memory of the fullest process, by part and by phase of an iteration.

The first process is the fullest, because shards are cut so that no other holds more. So no GPU needs more memory than
that of the first process.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from sage_grpo import registry
from sage_grpo.config import RecipeConfig
from sage_grpo.config.recipe import ParallelConfig
from sage_grpo.core.passes import old_steps, outside_points
from sage_grpo.core.protocols import Prompt
from sage_grpo.core.video_model import VideoModel
from sage_grpo.distributed.device import HOST
from sage_grpo.distributed.fake_group import pretend
from sage_grpo.distributed.shard import local
from sage_grpo.preflight.plan.counts import stochastic_steps
from sage_grpo.preflight.plan.encoding import encodes_ahead
from sage_grpo.preflight.plan.layout import contents
from sage_grpo.preflight.plan.probe import Cost, Probe, config_prompts
from sage_grpo.registry import resolve_reward
from sage_grpo.training import build

FLOAT = 4
Phase = Literal["encode", "rollout", "decode", "score", "step", "train"]
PHASES: dict[Phase, tuple[str, ...]] = {  # which parts of the memory each phase needs, besides what is always held
    "encode": ("text encoders",),
    "rollout": ("latents of the trajectory", "conditions", "videos made before", "activations of a rollout"),
    "decode": ("latents of the trajectory", "conditions", "VAE", "activations of the VAE", "videos made before"),
    "score": (
        "latents of the trajectory",
        "conditions",
        "videos",
        "weights set aside for the gauge",
    ),
    "step": (
        "latents of the trajectory",
        "conditions",
        "renoised videos",
        "velocities of the anchor",
        "gradients",
        "scratch of the optimizer",
    ),
    "train": (
        "latents of the trajectory",
        "conditions",
        "renoised videos",
        "velocities of the anchor",
        "gradients",
        "activations",
    ),
}
ALWAYS = ("trained weights", "frozen weights", "anchor and other copies", "optimizer", "reward models")


@dataclass(frozen=True)
class Memory:
    """The bytes of the first process: on its device by part, and on the host."""

    parts: dict[str, int]
    video: int  # decoded
    offloaded: tuple[str, ...]  # parts that are on the device only while they are used
    host: int
    uncounted: tuple[str, ...]  # scorers that do not say how large they are
    encodes_ahead: bool = False  # the encoders are there before the first iteration only

    def phase(self, name: Phase) -> int:
        resident = {"VAE"} if self.encodes_ahead else {"text encoders", "VAE"}
        resident -= {*self.offloaded}
        return sum(self.parts.get(part, 0) for part in {*ALWAYS, *resident, *PHASES[name]})

    @property
    def phases(self) -> dict[Phase, int]:
        return {name: self.phase(name) for name in PHASES}

    @property
    def peak(self) -> int:
        return max(self.phases.values())


@dataclass(frozen=True)
class ModelStates:
    """The bytes that a process keeps between passes, by kind, and the bytes of a checkpoint on disk.

    The kinds are trained and frozen weights, gradients, optimizer, buffers, and copies of the trained weights: the
    anchor and averages.
    """

    by_kind: dict[str, int]
    largest: int  # trained tensor
    checkpoint: int
    parameters: int
    trained: int


def model_states(config: RecipeConfig) -> ModelStates:
    """Return the bytes that the first process of a recipe's layout keeps between passes.

    The model is built on one process, and each tensor is divided by rows, as FSDP2 does. No process gets more rows than
    the first.
    """
    layout, model = config.parallel, build.outline_model(config)
    parameters = sum(w.numel() for name, w in model.module.named_parameters() if ".lora_" not in name)
    trained = sum(w.numel() for w in model.module.parameters() if w.requires_grad)
    shards = layout.processes // layout.replicate

    def share(x: torch.Tensor) -> int:
        whole = local(x)
        rows = len(whole) if whole is not x else 0  # what is not cut, such as a count of steps, everyone has
        return size_of(whole) // rows * math.ceil(rows / shards) if rows else size_of(whole)

    with pretend(1) as processes:
        first_rank = contents(model, config.model_copy(update={"parallel": ParallelConfig()}), processes)
        kinds = {kind: sum(map(share, tensors)) for kind, tensors in first_rank.held.items()}
        largest = max(map(share, first_rank.held["trained weights"]))
        return ModelStates(kinds, largest, sum(map(size_of, first_rank.saved.values())), parameters, trained)


def size_of(x: torch.Tensor) -> int:
    return x.numel() * x.element_size()


def component_bytes(model: VideoModel, names: Sequence[str]) -> int:
    parts = [part for name in names if (part := getattr(model.pipe, name, None)) is not None]
    return sum(map(size_of, (w for part in parts for w in (*part.parameters(), *part.buffers()))))


def reads_base(model: VideoModel, config: RecipeConfig) -> bool:
    """Return whether the drift gauge loads the base weights while the trained weights stay on the device."""
    wanted = config.gauge.every and config.tuning.mode == "full" and not config.tuning.offload_copies
    return bool(wanted and model.resizable and not outside_points(config))  # else the trainer holds a copy


def video_bytes(model: Any) -> int:
    """Return the bytes of one decoded video's frames.

    They follow from frames, height and width if the model has a pipeline. Other models are small, so one video is
    decoded.
    """
    if model.pipe is not None:
        return int(model.frames * model.height * model.width * 3)
    return int(model.decode(torch.zeros(1, *model.latent_shape(Prompt("")))).numel())


def reward_bytes(config: RecipeConfig) -> tuple[int, tuple[str, ...]]:
    """Return the bytes of the scorers on the trainer's device, and the names of scorers of unknown size."""
    total, unknown = 0, []
    for entry in (*config.rewards, *config.monitors):
        scorer = resolve_reward(entry.type) if entry.type in registry.rewards() else None
        size = scorer.device_bytes if scorer else None  # those built-in ones that say nothing are below 0.2 GB
        path = Path(str(entry.options.get("path", "")))
        files = list(path.glob("*.safetensors")) if entry.options.get("path") and path.is_dir() else []
        if files:
            size = sum(file.stat().st_size for file in files)
        if size is None:
            unknown.append(entry.type)
        device = entry.options.get("device")
        beside = torch.device(device) != HOST if device else bool(scorer and scorer.follows_videos_device)
        total += (size or 0) if beside else 0
    return total, tuple(dict.fromkeys(unknown))


def memory(
    model: VideoModel,
    config: RecipeConfig,
    passes: Probe,
    states: ModelStates,
    decoding: Cost | None,
    *,
    gpu: bool = True,
) -> Memory:
    """Return the memory of the fullest process, by part.

    On a GPU (`gpu`), the optimizer updates all tensors together, and needs room for one more copy of each tensor. On
    the host, it needs room for two copies of the largest tensor. `decoding` is None for a model without a pipeline.
    """
    policy = config.policy
    videos = config.rollouts // config.parallel.replicas
    decoded = math.ceil(videos / config.parallel.sequence)  # dealt out to those that share a video
    latents = torch.Size(model.latent_shape(Prompt(""))).numel()
    answer = model.dtype.itemsize  # of a velocity
    steps = stochastic_steps(config)
    frames = video_bytes(model)
    condition = model.blank_condition(1) or model.encode(config_prompts(config, 1))
    condition_bytes = sum(map(size_of, condition.values()))
    copies = states.by_kind["copies"]
    outside = outside_points(config) / policy.updates_per_rollout / config.parallel.replicas
    anchored = videos * latents * answer * config.trained_steps if config.kl.anchor != "none" else 0
    rewards, uncounted = reward_bytes(config)
    parts = {
        "trained weights": states.by_kind["trained weights"],
        "frozen weights": states.by_kind["frozen weights"] + states.by_kind["buffers"],
        "gradients": states.by_kind["gradients"],
        "optimizer": states.by_kind["optimizer"],
        "anchor and other copies": 0 if config.tuning.offload_copies else copies,
        "weights set aside for the gauge": states.by_kind["trained weights"] if reads_base(model, config) else 0,
        "scratch of the optimizer": states.by_kind["trained weights"] if gpu else 2 * states.largest,
        "activations": round(passes.training.memory),
        "activations of a rollout": round(passes.forward.memory),
        "latents of the trajectory": videos * latents * (steps * (2 * FLOAT + answer) + FLOAT),
        "renoised videos": videos * latents * (policy.points or 0) * (2 * FLOAT + (answer if old_steps(config) else 0)),
        "velocities of the anchor": anchored // policy.num_minibatches,
        "videos outside the window": round(outside * (latents * (FLOAT + answer) + condition_bytes)),
        "conditions": videos * condition_bytes,
        "videos": decoded * frames,  # until they are scored and seen
        "videos made before": max(decoded - policy.batch_size, 0) * frames,
        "text encoders": component_bytes(model, model.encoders),
        "VAE": component_bytes(model, model.decoders),
        "activations of the VAE": round(decoding.memory) if decoding else 0,
        "reward models": rewards,
    }
    ahead = encodes_ahead(model, config)
    away = (("VAE",) if ahead else ("text encoders", "VAE")) if config.tuning.offload else ()
    host = sum(parts[name] for name in away) + (copies if config.tuning.offload_copies else 0)
    return Memory(parts, frames, away, host, uncounted, ahead)
