"""The seams: what the algorithm asks of a model, a reward, a bank of weights and a group of processes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol, Self

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
    """One row a video, one column a named score. Where `valid` is false the value means nothing.

    The one place that decides what a failure is: a number that is not finite is never valid, whoever says so.
    """

    values: Tensor
    valid: Tensor

    def __post_init__(self) -> None:
        if self.valid.shape != self.values.shape:
            raise ValueError(f"{tuple(self.values.shape)} scores with a mask of {tuple(self.valid.shape)}")
        object.__setattr__(self, "valid", self.valid.bool() & self.values.isfinite())

    @classmethod
    def of(cls, values: Tensor) -> Self:
        """Failed where the values are not finite."""
        return cls(values, torch.ones_like(values, dtype=torch.bool))

    @classmethod
    def failed(cls, videos: int, scores: int) -> Self:
        return cls.of(torch.full((videos, scores), torch.nan, dtype=torch.float64))

    @classmethod
    def rows(cls, parts: Sequence["Scores"]) -> Self:
        """The same scores of more videos."""
        return cls(torch.cat([part.values for part in parts]), torch.cat([part.valid for part in parts]))

    @classmethod
    def columns(cls, parts: Sequence["Scores"]) -> Self:
        """More scores of the same videos."""
        return cls(torch.cat([part.values for part in parts], 1), torch.cat([part.valid for part in parts], 1))

    def on_host(self) -> "Scores":
        """In double precision: what is summed and compared."""
        return Scores(self.values.double().cpu(), self.valid.cpu())


class Reward:
    """Turns videos into scores: derive from it, give `names` and `score`, and override what is not as it says here.

    Nobody asks a reward for anything else, and whatever wraps one must pass all of it on.
    """

    names: Sequence[str] = ()  # of its scores; a class that knows them only once it is made leaves them out
    groupwise: bool = False  # compares the videos of a prompt, and must be given all of them at once
    waited: float = 0.0  # seconds that callers stood still for its scores, since it was made
    reasons: Mapping[int, str] = MappingProxyType({})  # why videos of the last call are masked, by their number
    lower_is_better: Sequence[str] = ()  # of its names
    presets: Mapping[str, Mapping[str, float]] = MappingProxyType({})  # weights by name of the score
    monitor_only: str | None = None  # why it must not be trained on
    laboratory: bool = False  # judges clips of a made-up world alone
    device_bytes: int = 0  # of its weights, where a plan should count them

    def score(self, videos: Tensor, prompts: Sequence[Prompt]) -> Scores:
        """Of uint8 frames (B, F, H, W, 3), each with its prompt."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it scores")

    def begin(self, videos: Tensor, prompts: Sequence[Prompt]) -> Callable[[], Scores]:
        """What to call for the scores. One that works elsewhere starts now, while the caller makes the next videos."""
        return partial(self.score, videos, prompts)


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
