"""The seams: what the algorithm asks of a model, a reward, a bank of weights and a group of processes."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

Condition = Mapping[str, Tensor]  # what the network is told; every tensor has the samples as first axis


@dataclass(frozen=True)
class Prompt:
    text: str
    columns: Mapping[str, Any] = field(default_factory=dict)  # `image` for image-to-video, anything for rewards


class VideoModel(Protocol):
    """A flow-matching generator: no sampling loop, no scheduler, no optimizer inside."""

    @property
    def module(self) -> nn.Module: ...  # what is trained: parameters with requires_grad
    @property
    def lora_targets(self) -> Sequence[str]: ...
    @property
    def shard_blocks(self) -> Sequence[nn.Module]: ...

    def latent_shape(self, prompt: Prompt) -> tuple[int, ...]: ...
    def encode(self, prompts: Sequence[Prompt]) -> Condition: ...
    def velocity(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        """dx/dσ at latents (B, …) and noise levels (B,), guidance included."""
        ...

    def decode(self, x0: Tensor) -> Tensor:
        """Latents to uint8 frames (B, F, H, W, 3)."""
        ...

    def save_pretrained(self, directory: str) -> None: ...


def networks(module: nn.Module) -> dict[str, nn.Module]:
    """What is trained, by its name in a checkpoint: one transformer, or the experts of a mixture."""
    return dict(module.items()) if isinstance(module, nn.ModuleDict) else {"transformer": module}


def whole(x: Tensor) -> Tensor:
    """A result that processes hold parts of. Only for small ones, never for weights."""
    gathered: Tensor = x.full_tensor() if hasattr(x, "full_tensor") else x
    return gathered


@dataclass(frozen=True)
class Scores:
    """One row a video, one column a named score. Where `valid` is false the value means nothing."""

    values: Tensor
    valid: Tensor


class Reward(Protocol):
    """One that works while others do also has `begin(videos, prompts)`, which returns what to call for the scores."""

    @property
    def names(self) -> Sequence[str]: ...
    def score(self, videos: Tensor, prompts: Sequence[Prompt]) -> Scores: ...


class PromptSource(Protocol):
    """Prompts by position: a resumed run asks for the position it had reached."""

    def __call__(self, start: int, count: int) -> Sequence[Prompt]: ...


class WeightsBank(Protocol):
    """Named copies of the trainable weights: in memory, sharded, or as a LoRA adapter."""

    def save(self, name: str, decay: float = 0.0) -> None:
        """Copy the weights, or move the copy towards them: copy ← decay·copy + (1-decay)·weights."""
        ...

    def __contains__(self, name: str) -> bool: ...
    def using(self, name: str) -> AbstractContextManager[None]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Comm(Protocol):
    """The processes that share a run. Nothing else may depend on how many there are."""

    @property
    def rank(self) -> int: ...
    @property
    def world(self) -> int: ...
    def gather(self, x: Tensor) -> Tensor: ...  # concatenated in rank order, equal on all ranks
    def mean(self, x: Tensor) -> Tensor: ...
    def clip_grad_norm(self, parameters: Iterable[nn.Parameter], limit: float) -> Tensor: ...


class SingleProcess:
    """The `Comm` of one process."""

    rank, world = 0, 1

    def gather(self, x: Tensor) -> Tensor:
        return x

    def mean(self, x: Tensor) -> Tensor:
        return x

    def clip_grad_norm(self, parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
        return torch.nn.utils.clip_grad_norm_(parameters, limit)
