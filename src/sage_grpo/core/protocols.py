"""The seams: what the algorithm asks of a model, a reward, a bank of weights and a group of processes."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from sage_grpo.core.scores import Scores
from sage_grpo.errors import UserError

Condition = Mapping[str, Tensor]  # inputs of the network; every tensor has the samples as first axis


@dataclass(frozen=True)
class Prompt:
    """What a video is asked for, with whatever else its row of the prompt file says."""

    text: str
    """What a video is made from."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """`image` for image-to-video, anything for rewards."""


@dataclass(frozen=True)
class Videos:
    """What a model made of latents: frames, how fast they go, and the sound if there is any."""

    frames: Tensor
    """uint8 (B, F, H, W, 3)."""
    frame_rate: float | None = None
    """A second; none: the model does not say."""
    sound: Tensor | None = None
    """(B, channels, samples) from -1 to 1."""
    sample_rate: int | None = None
    """Samples of sound per second."""

    def __len__(self) -> int:
        return len(self.frames)

    def split(self, size: int) -> list["Videos"]:
        """Batches of `size` videos: views, so that none is held twice."""
        frames = torch.split(self.frames, size)
        sounds = torch.split(self.sound, size) if self.sound is not None else [None] * len(frames)
        return [replace(self, frames=f, sound=s) for f, s in zip(frames, sounds, strict=True)]

    @classmethod
    def joined(cls, parts: Sequence["Videos"]) -> "Videos":
        """Several batches of the same model as one."""
        if len(parts) == 1:
            return parts[0]
        sounds = [part.sound for part in parts if part.sound is not None]
        return replace(
            parts[0], frames=torch.cat([part.frames for part in parts]), sound=torch.cat(sounds) if sounds else None
        )


class SequenceParallel(Protocol):
    """The messages between processes that share a video. Each holds some of its tokens, or some of its heads."""

    @property
    def size(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def ring(self) -> int: ...  # processes in a ring; the others trade heads
    @property
    def ulysses(self) -> int: ...
    @property
    def mesh(self) -> Any: ...  # of those two axes, for diffusers
    @property
    def device(self) -> torch.device: ...
    def shard(self, x: Tensor, dim: int) -> Tensor: ...
    def all_gather(self, x: Tensor, dim: int) -> Tensor: ...
    def gather_equal(self, x: Tensor, dim: int) -> Tensor: ...  # the same of parts that are equally long
    def seq_to_head(self, x: Tensor) -> Tensor: ...
    def head_to_seq(self, x: Tensor) -> Tensor: ...
    def local_heads(self, x: Tensor) -> Tensor: ...
    def gather_heads(self, x: Tensor) -> Tensor: ...


class VideoModel(ABC):
    """A flow-matching generator: no sampling loop, no scheduler, no optimizer inside.

    Derive from it, give `module` and what is abstract here; the rest are capabilities, with the answer of a model that
    has none.
    """

    module: nn.Module
    """What is trained: its parameters with `requires_grad`."""
    lora_targets: Sequence[str] = ()
    """Names of the layers that LoRA is put on."""
    unused: Sequence[str] = ()
    """Parameters that never get a gradient, as regular expressions."""
    needs_image: bool = False
    """Starts from the first frame."""

    # Guidance and precision: rollout and replay must agree on them.
    guidance_scale: float = 1.0
    """1 is no guidance: the prompt alone is asked."""
    guidance_gradient: Literal["both", "conditional"] = "both"
    """Which branches of guidance a gradient goes through."""
    negative_prompt: str = ""
    """What guidance leads away from."""
    branches_together: bool = False
    """Both branches of guidance in one pass of twice the batch, where the model can do that."""
    branches_in_turn: bool = False
    """Backward passes of guidance: together, or one after the other."""
    autocasts: bool = False
    """Can compute in another precision than that of its weights."""
    autocast_dtype: torch.dtype | None = None
    """What to compute in, if not in the precision of the weights."""
    dtype: torch.dtype = torch.float32
    """Type of its velocities."""
    frame_rate: float | None = None
    """Frames of its videos per second."""

    # Where it comes from, and what a plan or a rehearsal may know of it without its weights.
    pipe: Any = None
    """The pipeline of diffusers, if it is one."""
    folder: str | None = None
    """Folder of its checkpoint."""
    resizable: bool = False
    """Has `tiny()` and `outline()`: the same classes at toy size, or whole without weights."""
    left_out: object | None = None
    """Encoders that stay on disk until `encoding`; none: they are in memory, or there are none."""
    encoders: Sequence[str] = ()
    """Components that are only needed to encode."""
    decoders: Sequence[str] = ()
    """Components that are only needed to decode."""
    blocks: str | None = None
    """Name of the repeated layers inside a network."""
    typical_text: int | None = None
    """Tokens of a prompt that a plan counts, where it is not always the same."""
    own_monitors: Sequence[str] = ()
    """Names of rewards that can judge any of its videos, of a made-up world."""

    @property
    def shard_blocks(self) -> Sequence[nn.Module]:
        """Layers that are gathered, recomputed and compiled one by one; none: the network is one piece."""
        return ()

    @abstractmethod
    def latent_shape(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the shape of one sample, without the batch. Several tensors are one row (`core.latents`)."""

    @abstractmethod
    def encode(self, prompts: Sequence[Prompt]) -> Condition:
        """Encode prompts: tensors by name, each with the samples as first axis."""

    @abstractmethod
    def velocity(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        r"""$v = dx/d\sigma$ at latents (B, …) and noise levels (B,), guidance included."""

    @abstractmethod
    def decode(self, x0: Tensor) -> Tensor:
        """Latents to uint8 frames (B, F, H, W, 3)."""

    @abstractmethod
    def save_pretrained(self, directory: str) -> None:
        """Write the weights as the model's own library reads them, into a folder that is there."""

    def render(self, x0: Tensor) -> Videos:
        """What rewards judge. A model that makes sound as well gives it here."""
        return Videos(self.decode(x0), self.frame_rate)

    @contextmanager
    def resized(self, **size: int) -> Iterator[None]:
        """Make videos of another size inside the block: any of `frames`, `height` and `width`."""
        if size:
            raise UserError(f"{type(self).__name__} makes videos of one size; leave {', '.join(sorted(size))} out")
        yield

    @property
    def guided(self) -> bool:
        """Whether a second branch is asked."""
        return self.guidance_scale != 1.0

    def lacks(self, prompt: Prompt) -> bool:
        """Say whether `encode` would have to load encoders for this prompt: they are left out, and it is not stored."""
        return False

    def encoding(self) -> AbstractContextManager[None]:
        """Hold encoders that are left out in memory inside the block; without it, each new prompt loads them again."""
        return nullcontext()

    def place(self, device: torch.device, offload_device: torch.device | None = None) -> None:
        """Move to the device; what can wait elsewhere waits at `offload_device`."""
        self.module.to(device)

    def share_sequence(self, sp: SequenceParallel) -> None:
        """Let the processes of a video have its tokens in parts."""
        raise UserError(f"parallel.sequence: {type(self).__name__} cannot share one video; use parallel.sequence=1")

    @classmethod
    def own_prompts(cls) -> Sequence[str]:
        """All that may be asked of it; none: anything, so prompts must be given."""
        return ()

    @classmethod
    def training_prompts(cls) -> Sequence[str]:
        """Those of its own that post-training is given, where some are kept out of it."""
        return cls.own_prompts()

    @classmethod
    def prompt_tags(cls, prompt: str) -> Mapping[str, str]:
        """What one of its own prompts is about, for tables by tag."""
        return {}

    def blank_condition(self, batch: int) -> Condition | None:
        """What `encode` would give, in size only; none if it must be asked."""
        return None


def networks(module: nn.Module) -> dict[str, nn.Module]:
    """What is trained, by its name in a checkpoint: one transformer, or the experts of a mixture."""
    return dict(module.items()) if isinstance(module, nn.ModuleDict) else {"transformer": module}


def whole(x: Tensor) -> Tensor:
    """A result that processes hold parts of. Only for small ones, never for weights."""
    gathered: Tensor = x.full_tensor() if hasattr(x, "full_tensor") else x
    return gathered


class Reward:
    """Turns videos into scores. Derive from it, define `names` and `score`, and override the defaults that do not fit.

    Callers use nothing else of a reward, so a wrapper must pass all of it on.
    """

    names: Sequence[str] = ()
    """Names of its scores. A class that knows them only once it is made leaves them out."""
    groupwise: bool = False
    """Compares the videos of a prompt, and needs all of them together."""
    uses_audio: bool = False
    """Scores the audio track too; videos without audio get no score."""
    wait_seconds: float = 0.0
    """Seconds that callers have waited for its scores, since it was made."""
    reasons: Mapping[int, str] = MappingProxyType({})
    """Why videos of the last call are masked, by their number."""
    lower_is_better: Sequence[str] = ()
    """Those of its names where less is better."""
    presets: Mapping[str, Mapping[str, float]] = MappingProxyType({})
    """Sets of weights: by their own name, then by the name of the score."""
    not_trainable_because: str | None = None
    """The reason why it may only be a monitor; None if it may be trained on."""
    laboratory: bool = False
    """Judges clips of a made-up world alone."""
    device_bytes: int = 0
    """Bytes of its weights, where a plan should count them."""
    follows_videos_device: bool = False
    """Whether its weights move to the device of the videos, unless its option `device` says otherwise. Those of other
    scorers stay on the host."""

    def score(self, videos: Tensor, prompts: Sequence[Prompt]) -> Scores:
        """Return the scores (B, R) of uint8 frames (B, F, H, W, 3), each video with its prompt."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it scores")

    def frame_indices(self, frames: int) -> Sequence[int] | None:
        """Return the indices of the frames that it needs of a video with so many, or None for all.

        Callers may black out the others.
        """
        return None

    def submit(self, videos: Videos, prompts: Sequence[Prompt]) -> Callable[[], Scores]:
        """Start scoring, and return a function that waits for the scores.

        A scorer on another machine works while the caller makes the next videos. Runs call this method. Override it to
        use the audio track or the frame rate.
        """
        return partial(self.score, videos.frames, prompts)


class PromptSource(Protocol):
    """Prompts by position: a resumed run asks for the position it had reached."""

    @property
    def fingerprint(self) -> str | None:
        """Return a digest of the prompts, so that a resumed run gets the same ones; None if unknown."""
        ...

    def __call__(self, start: int, count: int) -> Sequence[Prompt]:
        """`count` prompts from position `start` on; positions never end."""
        ...


class WeightsBank(Protocol):
    """Named copies of the trainable weights: in memory, sharded, or as a LoRA adapter."""

    def save(self, name: str, decay: float = 0.0) -> None:
        """Copy the weights, or move the copy towards them: copy ← decay·copy + (1-decay)·weights."""
        ...

    def __contains__(self, name: str) -> bool:
        """Whether there is a copy of that name."""
        ...

    def adopt(self, name: str) -> None:
        """Make a copy the weights themselves, for good."""
        ...

    def using(self, name: str) -> AbstractContextManager[None]:
        """The model with a copy in place of its weights, for a while."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All copies, for a checkpoint."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """All copies, from a checkpoint."""
        ...


class Comm(Protocol):
    """The processes that share a run. Nothing else may depend on how many there are."""

    @property
    def replica(self) -> int:
        """Index of this replica."""
        ...

    @property
    def num_replicas(self) -> int:
        """Number of replicas. A replica has videos of its own; it is one process, or several that share a video."""
        ...

    @property
    def sp_size(self) -> int:
        """Number of processes that share a video (sequence parallelism)."""
        ...

    @property
    def sp_rank(self) -> int:
        """Index of this process among those that share its video."""
        ...

    def sum_sp(self, x: Tensor) -> Tensor:
        """Return the sum of `x` over the processes that share a video. Each fills in its own part, and zeros."""
        ...

    def gather(self, x: Tensor) -> Tensor:
        """Return `x` of all replicas, concatenated in their order; equal on all of them."""
        ...

    def mean(self, x: Tensor) -> Tensor:
        """Return the mean of `x` over all replicas; equal on all of them."""
        ...

    def broadcast(self, x: Tensor, replica: int) -> Tensor:
        """Return what `replica` has for `x`, which must have the same shape on all of them."""
        ...

    def set_last_backward(self, module: nn.Module, *, last: bool) -> None:
        """Say whether the next backward pass is an update's last: sums over copies of the weights may wait for it."""
        ...

    def clip_grad_norm(self, parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
        """Scale the gradients down to a norm of `limit`, and say what it was over all ranks."""
        ...


class SingleProcess:
    """The `Comm` of one process."""

    replica, num_replicas, sp_rank, sp_size = 0, 1, 0, 1

    def sum_sp(self, x: Tensor) -> Tensor:
        return x

    def gather(self, x: Tensor) -> Tensor:
        return x

    def mean(self, x: Tensor) -> Tensor:
        return x

    def broadcast(self, x: Tensor, replica: int) -> Tensor:
        return x

    def set_last_backward(self, module: nn.Module, *, last: bool) -> None:
        pass

    def clip_grad_norm(self, parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
        return torch.nn.utils.clip_grad_norm_(parameters, limit)
