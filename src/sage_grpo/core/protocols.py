"""The interfaces through which the algorithm uses models, rewards, prompts, banks of weights and processes."""

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
    """A prompt: its text, and the other columns of its row in the prompt file."""

    text: str
    """The text that the video is made from."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """The other columns by name: `image` for image-to-video, anything for rewards."""


@dataclass(frozen=True)
class Videos:
    """Decoded videos: their frames, the frame rate, and the sound if there is any."""

    frames: Tensor
    """(B, F, H, W, 3), uint8."""
    frame_rate: float | None = None
    """Frames per second; None if the model does not say."""
    sound: Tensor | None = None
    """(B, channels, samples), from -1 to 1; None without sound."""
    sample_rate: int | None = None
    """Samples of sound per second."""

    def __len__(self) -> int:
        return len(self.frames)

    def split(self, size: int) -> list["Videos"]:
        """Return batches of `size` videos. They are views, so no video is in memory twice."""
        frames = torch.split(self.frames, size)
        sounds = torch.split(self.sound, size) if self.sound is not None else [None] * len(frames)
        return [replace(self, frames=f, sound=s) for f, s in zip(frames, sounds, strict=True)]

    @classmethod
    def joined(cls, parts: Sequence["Videos"]) -> "Videos":
        """Join several batches of the same model into one."""
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

    Derive from it, set `module` and implement the abstract methods. All other members are capabilities, and their
    defaults say that the model lacks them.
    """

    module: nn.Module
    """The network to train, by its parameters with `requires_grad`. A mixture of experts is a `ModuleDict`."""
    lora_targets: Sequence[str] = ()
    """Names of the layers that get LoRA adapters, unless the recipe names others."""
    unused: Sequence[str] = ()
    """Regular expressions for the names of parameters that never get a gradient."""
    needs_image: bool = False
    """Whether videos start from a first frame that the prompt gives."""

    # Guidance and precision: rollout and replay must agree on them.
    guidance_scale: float = 1.0
    """Scale of guidance; 1 is no guidance, and only the prompt itself is evaluated."""
    guidance_gradient: Literal["both", "conditional"] = "both"
    """The branches of guidance that a gradient flows through."""
    negative_prompt: str = ""
    """The prompt that guidance leads away from."""
    branches_together: bool = False
    """Whether both branches of guidance run in one pass of twice the batch, where the model can do that."""
    branches_in_turn: bool = False
    """Whether the two branches of guidance run their backward passes one after the other."""
    autocasts: bool = False
    """Whether it can compute in another precision than that of its weights."""
    autocast_dtype: torch.dtype | None = None
    """Type to compute in; None for that of the weights."""
    dtype: torch.dtype = torch.float32
    """Type of its velocities."""
    frame_rate: float | None = None
    """Frames per second of its videos; None if unknown."""

    # Where it comes from, and what a plan or a rehearsal may know of it without its weights.
    pipe: Any = None
    """Its diffusers pipeline, if it has one."""
    folder: str | None = None
    """Folder of its checkpoint, if it was loaded from one."""
    resizable: bool = False
    """Whether it has `tiny()` and `outline()`: the same classes at toy size, or at full size without weights."""
    left_out: object | None = None
    """Loader of encoders that stay on disk until `encoding`; None if they are in memory, or there are none."""
    encoders: Sequence[str] = ()
    """Names of the components that are only needed to encode."""
    decoders: Sequence[str] = ()
    """Names of the components that are only needed to decode."""
    blocks: str | None = None
    """Name of the submodule with the repeated layers of a network."""
    typical_text: int | None = None
    """Tokens per prompt that a plan assumes, if the model computes with as many as a prompt has; else None."""
    own_monitors: Sequence[str] = ()
    """Names of rewards that can judge any video of this model, whose world is made up."""

    @property
    def shard_blocks(self) -> Sequence[nn.Module]:
        """The layers that are gathered, recomputed and compiled one by one; empty if the network is one piece."""
        return ()

    @abstractmethod
    def latent_shape(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the shape of one sample's latent, without the batch.

        A latent of several tensors is packed into one row (`core.latents`).
        """

    @abstractmethod
    def encode(self, prompts: Sequence[Prompt]) -> Condition:
        """Return the network's inputs for a batch of prompts: tensors (B, …) by name."""

    @abstractmethod
    def velocity(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        r"""Return $v = dx/d\sigma$ (B, …) at latents `x` (B, …) and noise levels `sigma` (B,), guidance included."""

    @abstractmethod
    def decode(self, x0: Tensor) -> Tensor:
        """Decode clean latents (B, …) into frames (B, F, H, W, 3), uint8."""

    @abstractmethod
    def save_pretrained(self, directory: str) -> None:
        """Write the weights into an existing folder, in the format of the model's own library."""

    def render(self, x0: Tensor) -> Videos:
        """Decode clean latents (B, …) into the videos that rewards judge. Override it in a model with sound."""
        return Videos(self.decode(x0), self.frame_rate)

    @contextmanager
    def resized(self, **size: int) -> Iterator[None]:
        """Make videos of another size inside the block: any of `frames`, `height` and `width`."""
        if size:
            raise UserError(f"{type(self).__name__} makes videos of one size; leave {', '.join(sorted(size))} out")
        yield

    @property
    def guided(self) -> bool:
        """Whether guidance evaluates a second branch."""
        return self.guidance_scale != 1.0

    def lacks(self, prompt: Prompt) -> bool:
        """Return whether `encode` would have to load encoders for this prompt.

        That is so if they are left out and the prompt's embeddings are not stored.
        """
        return False

    def encoding(self) -> AbstractContextManager[None]:
        """Keep encoders that are left out in memory inside the block.

        Without it, each new prompt loads them again.
        """
        return nullcontext()

    def place(self, device: torch.device, offload_device: torch.device | None = None) -> None:
        """Move the model to `device`.

        Parts that are not always needed, such as encoders, wait on `offload_device` if it is given.
        """
        self.module.to(device)

    def share_sequence(self, sp: SequenceParallel) -> None:
        """Prepare the network for processes that share a video, each with a part of its tokens."""
        raise UserError(f"parallel.sequence: {type(self).__name__} cannot share one video; use parallel.sequence=1")

    @classmethod
    def own_prompts(cls) -> Sequence[str]:
        """Return all prompts that the model understands; empty if it takes any, so that a recipe must give them."""
        return ()

    @classmethod
    def training_prompts(cls) -> Sequence[str]:
        """Return those of `own_prompts` that post-training uses; others may be kept out of it."""
        return cls.own_prompts()

    @classmethod
    def prompt_tags(cls, prompt: str) -> Mapping[str, str]:
        """Return what one of `own_prompts` is about, as values by tag, for tables by tag."""
        return {}

    def blank_condition(self, batch: int) -> Condition | None:
        """Return a stand-in for what `encode` returns: tensors (batch, …) of the right size.

        It is None if only `encode` itself knows the sizes.
        """
        return None


def networks(module: nn.Module) -> dict[str, nn.Module]:
    """Return the trained networks by their names in a checkpoint: one transformer, or the experts of a mixture."""
    return dict(module.items()) if isinstance(module, nn.ModuleDict) else {"transformer": module}


def whole(x: Tensor) -> Tensor:
    """Return the full tensor of which each process holds a part. Only for small results, never for weights."""
    gathered: Tensor = x.full_tensor() if hasattr(x, "full_tensor") else x
    return gathered


class Reward:
    """The base class of rewards, which turn videos into scores.

    Derive from it, define `names` and `score`, and override the defaults that do not fit. Callers use nothing else of a
    reward, so a wrapper must pass all of it on.
    """

    names: Sequence[str] = ()
    """Names of its R scores. A class whose instances differ in their names leaves it empty."""
    groupwise: bool = False
    """Whether it compares the videos of a prompt, and needs all of them together."""
    uses_audio: bool = False
    """Whether it scores the audio track too; videos without audio then get no score."""
    wait_seconds: float = 0.0
    """Seconds that callers have waited for its scores, in total."""
    reasons: Mapping[int, str] = MappingProxyType({})
    """Why videos of the last call are masked, by their index in the batch."""
    lower_is_better: Sequence[str] = ()
    """Names of the scores of which less is better."""
    presets: Mapping[str, Mapping[str, float]] = MappingProxyType({})
    """Named sets of weights; each gives a weight by the name of a score."""
    not_trainable_because: str | None = None
    """Why it may only be a monitor; None if it may be trained on."""
    laboratory: bool = False
    """Whether it judges only clips of a made-up world."""
    device_bytes: int = 0
    """Bytes of its weights that a plan counts."""
    follows_videos_device: bool = False
    """Whether its weights move to the device of the videos, unless its option `device` says otherwise. Those of other
    scorers stay on the host."""

    def score(self, videos: Tensor, prompts: Sequence[Prompt]) -> Scores:
        """Return the scores (B, R) of uint8 frames (B, F, H, W, 3), each video with its prompt."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it scores")

    def frame_indices(self, frames: int) -> Sequence[int] | None:
        """Return the indices of the frames that it needs from a video of `frames` frames, or None for all.

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
    """Prompts by position. A resumed run continues at the position that it had reached."""

    @property
    def fingerprint(self) -> str | None:
        """Return a digest of the prompts, so that a resumed run gets the same ones; None if unknown."""
        ...

    def __call__(self, start: int, count: int) -> Sequence[Prompt]:
        """Return `count` prompts, from position `start`. Positions never end."""
        ...


class WeightsBank(Protocol):
    """Named copies of the trainable weights: in memory, sharded, or as LoRA adapters."""

    def save(self, name: str, decay: float = 0.0) -> None:
        """Save the weights as copy `name`, or move that copy towards them.

        copy ← decay·copy + (1-decay)·weights. A copy that does not exist yet becomes equal to the weights.
        """
        ...

    def __contains__(self, name: str) -> bool:
        """Return whether there is a copy of that name."""
        ...

    def adopt(self, name: str) -> None:
        """Overwrite the weights by copy `name`."""
        ...

    def using(self, name: str) -> AbstractContextManager[None]:
        """Replace the model's weights by copy `name` inside the block."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the copies, for a checkpoint."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the copies of a checkpoint."""
        ...


class Comm(Protocol):
    """The messages between the processes of a run. Nothing else may depend on how many processes there are."""

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
        """Return the sum of `x` over the processes that share a video.

        Each process fills in its own part of `x`, and zeros elsewhere.
        """
        ...

    def gather(self, x: Tensor) -> Tensor:
        """Return `x` of all replicas, concatenated in their order along the first axis; equal on all of them."""
        ...

    def mean(self, x: Tensor) -> Tensor:
        """Return the mean of `x` over all replicas; equal on all of them."""
        ...

    def broadcast(self, x: Tensor, replica: int) -> Tensor:
        """Return the `x` of one replica on all of them. It must have the same shape everywhere."""
        ...

    def set_last_backward(self, module: nn.Module, *, last: bool) -> None:
        """Announce whether the next backward pass is an update's last.

        Sums of gradients over copies of the weights may wait for the last one.
        """
        ...

    def clip_grad_norm(self, parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
        """Scale the gradients down to a norm of `limit`, and return the norm before, over all ranks."""
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
