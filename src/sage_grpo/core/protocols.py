"""The interfaces through which the algorithm uses models, rewards, prompts and banks of weights."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from sage_grpo.core.comm import SequenceParallel
from sage_grpo.core.scores import Scores
from sage_grpo.errors import UserError

Condition = Mapping[str, Tensor]  # inputs of the network; every tensor has the samples as first axis


@dataclass(frozen=True)
class Prompt:
    """A prompt: its text, and the other columns of its row in the prompt file.

    Examples:
        >>> Prompt("a red circle moving left", {"image": "circle.png"}).columns["image"]
        'circle.png'
    """

    text: str
    """The text that the video is made from."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Values of the other columns by name: `image` for image-to-video, any others for rewards."""


@dataclass(frozen=True)
class Videos:
    """Decoded videos: their frames, the frame rate, and the sound if there is any.

    Examples:
        >>> videos = Videos(torch.zeros(4, 9, 32, 32, 3, dtype=torch.uint8), frame_rate=8)
        >>> [tuple(part.frames.shape) for part in videos.split(3)]
        [(3, 9, 32, 32, 3), (1, 9, 32, 32, 3)]
    """

    frames: Tensor
    """Frames (B, F, H, W, 3), uint8."""
    frame_rate: float | None = None
    """Frames per second; None if the model does not say."""
    sound: Tensor | None = None
    """Sound (B, channels, samples), from -1 to 1; None if the videos have no sound."""
    sample_rate: int | None = None
    """Samples of sound per second; None if the videos have no sound."""

    def __len__(self) -> int:
        return len(self.frames)

    def split(self, size: int) -> list["Videos"]:
        """Split into batches of `size` videos each; the last may be smaller. The batches are views, not copies."""
        frames = torch.split(self.frames, size)
        sounds = torch.split(self.sound, size) if self.sound is not None else [None] * len(frames)
        return [replace(self, frames=f, sound=s) for f, s in zip(frames, sounds, strict=True)]

    @classmethod
    def joined(cls, parts: Sequence["Videos"]) -> "Videos":
        """Concatenate batches of videos that the same model made."""
        if len(parts) == 1:
            return parts[0]
        sounds = [part.sound for part in parts if part.sound is not None]
        return replace(
            parts[0], frames=torch.cat([part.frames for part in parts]), sound=torch.cat(sounds) if sounds else None
        )


class VideoModel(ABC):
    """The base class of flow-matching video models: no sampling loop, no scheduler, no optimizer inside.

    Derive from it, set `module` and implement the abstract methods. All other members are capabilities, and their
    defaults say that the model does not have them.

    Examples:
        >>> class OnePixel(VideoModel):
        ...     def __init__(self):
        ...         self.module = nn.Linear(1, 1)
        ...     def latent_shape(self, prompt):
        ...         return (1,)
        ...     def encode(self, prompts):
        ...         return {}
        ...     def velocity(self, x, sigma, condition):
        ...         return self.module(x)
        ...     def decode(self, x0):
        ...         return (255 * x0.sigmoid()).byte().reshape(-1, 1, 1, 1, 1).expand(-1, 1, 1, 1, 3)
        ...     def save_pretrained(self, directory):
        ...         torch.save(self.module.state_dict(), f"{directory}/weights.pt")
        >>> OnePixel().velocity(torch.zeros(2, 1), torch.ones(2), {}).shape
        torch.Size([2, 1])
    """

    module: nn.Module
    """The network. Its parameters with `requires_grad` are trained. A mixture of experts is a `ModuleDict`, with one
    network per expert."""
    lora_targets: Sequence[str] = ()
    """Names of the layers that get LoRA adapters, unless the recipe names others."""
    unused: Sequence[str] = ()
    """Regular expressions for the names of parameters that never get a gradient."""
    needs_image: bool = False
    """Whether every prompt must give an image, which is the first frame of its video."""

    # Guidance and precision: rollout and replay must agree on them.
    guidance_scale: float = 1.0
    """Scale of classifier-free guidance; 1 means no guidance, so that the network is only evaluated with the prompt
    itself."""
    guidance_gradient: Literal["both", "conditional"] = "both"
    """The branches of guidance through which gradients flow: both, or only that of the prompt."""
    negative_prompt: str = ""
    """The prompt that guidance leads away from."""
    branches_together: bool = False
    """Whether both branches of guidance run in one forward pass with twice the batch, if the model can do that."""
    branches_in_turn: bool = False
    """Whether the two branches of guidance run their backward passes one after the other."""
    autocasts: bool = False
    """Whether the model can compute in another precision than that of its weights."""
    autocast_dtype: torch.dtype | None = None
    """Type that the network computes in; None means the type of its weights."""
    dtype: torch.dtype = torch.float32
    """Type of the velocities that the model returns."""
    frame_rate: float | None = None
    """Frames per second of the model's videos; None if unknown."""

    # Where it comes from, and what a plan or a rehearsal may know of it without its weights.
    pipe: Any = None
    """The model's diffusers pipeline; None if it has none."""
    folder: str | None = None
    """Folder of the checkpoint that the model was loaded from; None if it was built without one."""
    resizable: bool = False
    """Whether the class has `tiny()`, which builds a model at toy size, and `outline()`, for full size without
    weights."""
    left_out: object | None = None
    """Loader of the encoders that stay on disk until a block of `encoding`; None if they are in memory, or there are
    none."""
    encoders: Sequence[str] = ()
    """Names of the pipeline's components that are only needed to encode prompts."""
    decoders: Sequence[str] = ()
    """Names of the pipeline's components that are only needed to decode latents."""
    blocks: str | None = None
    """Name of the submodule that contains the repeated layers of a network; None if there is none."""
    typical_text: int | None = None
    """Tokens per prompt that a plan assumes for a model whose cost grows with the prompt; None for a fixed text
    length."""
    own_monitors: Sequence[str] = ()
    """Names of rewards that can judge any video of this model, if it shows a made-up world; else empty."""

    @property
    def shard_blocks(self) -> Sequence[nn.Module]:
        """The layers that are sharded, recomputed and compiled one by one; empty if the network is one piece."""
        return ()

    @abstractmethod
    def latent_shape(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the shape of the latent of a video for this prompt, without batch axis.

        A latent of several tensors is packed into one row, so that its shape is (N,) (`core.latents`).
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
        """Decode clean latents (B, …) into the videos that rewards judge. A model with sound overrides this method."""
        return Videos(self.decode(x0), self.frame_rate)

    @contextmanager
    def resized(self, **size: int) -> Iterator[None]:
        """Make videos of another size inside the block, given by any of `frames`, `height` and `width` (pixels)."""
        if size:
            raise UserError(f"{type(self).__name__} makes videos of one size; leave {', '.join(sorted(size))} out")
        yield

    @property
    def guided(self) -> bool:
        """Whether guidance is on, so that the network is also evaluated with the negative prompt."""
        return self.guidance_scale != 1.0

    def lacks(self, prompt: Prompt) -> bool:
        """Return whether `encode` would have to load encoders from disk for this prompt.

        True if the encoders are left out of memory and the prompt's embeddings are not stored.
        """
        return False

    def encoding(self) -> AbstractContextManager[None]:
        """Keep the encoders that are left out on disk in memory inside the block.

        Outside such a block, every new prompt loads them again.
        """
        return nullcontext()

    def place(self, device: torch.device, offload_device: torch.device | None = None) -> None:
        """Move the model to `device`.

        Parts that are not always needed, such as encoders, wait on `offload_device` if it is given.
        """
        self.module.to(device)

    def share_sequence(self, sp: SequenceParallel) -> None:
        """Prepare the network for processes that share a video, each with a part of the video's tokens."""
        raise UserError(f"parallel.sequence: {type(self).__name__} cannot share one video; use parallel.sequence=1")

    @classmethod
    def own_prompts(cls) -> Sequence[str]:
        """Return all prompts that the model understands.

        An empty list means that the model takes any prompt, so that a recipe must give its prompts.
        """
        return ()

    @classmethod
    def training_prompts(cls) -> Sequence[str]:
        """Return the prompts among `own_prompts` that post-training uses; the rest may be kept for evaluation."""
        return cls.own_prompts()

    @classmethod
    def prompt_tags(cls, prompt: str) -> Mapping[str, str]:
        """Return what one of `own_prompts` shows, as values by tag, such as the shape or the colour.

        Tables of an evaluation group prompts by tag.
        """
        return {}

    def blank_condition(self, batch: int) -> Condition | None:
        """Return a placeholder for what `encode` returns for `batch` prompts: tensors (batch, …) of the right shapes.

        None if only `encode` itself knows the shapes.
        """
        return None


def networks(module: nn.Module) -> dict[str, nn.Module]:
    """Return the trained networks by their names in a checkpoint: one transformer, or the experts of a mixture."""
    return dict(module.items()) if isinstance(module, nn.ModuleDict) else {"transformer": module}


def whole(x: Tensor) -> Tensor:
    """Return `x` itself, or the full tensor if each process has only a shard of `x`.

    Use it only for small results, never for weights, because every process gets the full tensor.
    """
    gathered: Tensor = x.full_tensor() if hasattr(x, "full_tensor") else x
    return gathered


class Reward:
    """The base class of rewards, which turn videos into scores.

    Derive from it, define `names` and `score`, and override the defaults that do not fit. Callers use only the members
    below, so a wrapper around a reward must forward all of them.

    Examples:
        >>> class Brightness(Reward):
        ...     names = ("brightness",)
        ...     def score(self, videos, prompts):
        ...         return Scores.of(videos.double().flatten(1).mean(1, keepdim=True) / 255)
        >>> dark = torch.full((2, 9, 8, 8, 3), 51, dtype=torch.uint8)
        >>> Brightness().score(dark, [Prompt("a cat"), Prompt("a dog")]).values.tolist()
        [[0.2], [0.2]]
    """

    names: Sequence[str] = ()
    """Names of the R scores of each video. Empty in a class whose instances have different names."""
    groupwise: bool = False
    """Whether the reward compares the videos of a prompt, and needs all of them in one call."""
    uses_audio: bool = False
    """Whether the reward also judges the audio track; videos without audio then get no score."""
    wait_seconds: float = 0.0
    """Seconds that callers have waited for scores of this reward, in total."""
    reasons: Mapping[int, str] = MappingProxyType({})
    """Why videos of the last call have no valid score: a reason by the index of each such video in the batch."""
    lower_is_better: Sequence[str] = ()
    """Names of the scores for which a lower value is better."""
    presets: Mapping[str, Mapping[str, float]] = MappingProxyType({})
    """Sets of weights that a recipe can choose by name; each maps names of scores to weights."""
    not_trainable_because: str | None = None
    """Why the reward may only monitor a run, and not train it; None if a run may train on it."""
    laboratory: bool = False
    """Whether the reward judges only videos of the laboratory's made-up world."""
    device_bytes: int = 0
    """Bytes of the reward's weights, as memory plans count them."""
    follows_videos_device: bool = False
    """Whether the reward's weights move to the device of the videos, unless its option `device` says otherwise. If
    False, they stay on the host."""

    def score(self, videos: Tensor, prompts: Sequence[Prompt]) -> Scores:
        """Return the scores (B, R) of B videos, given as uint8 frames (B, F, H, W, 3) with one prompt per video."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it scores")

    def frame_indices(self, frames: int) -> Sequence[int] | None:
        """Return the indices of the frames that the reward looks at in a video of `frames` frames, or None for all.

        Callers may pass black frames in place of the others.
        """
        return None

    def submit(self, videos: Videos, prompts: Sequence[Prompt]) -> Callable[[], Scores]:
        """Start scoring B videos, and return a function that waits for their scores (B, R).

        Runs call this method, so that a scorer on another machine works while the caller makes the next videos.
        Override it to use the audio track or the frame rate, which `score` does not get.
        """
        return partial(self.score, videos.frames, prompts)


class PromptSource(Protocol):
    """A source of prompts, numbered by position. A resumed run continues at the position that it had reached."""

    @property
    def fingerprint(self) -> str | None:
        """Return a digest of all prompts, so that a resumed run can check that they are unchanged; None if unknown."""
        ...

    def __call__(self, start: int, count: int) -> Sequence[Prompt]:
        """Return `count` prompts, from position `start` on. Every position, however large, has a prompt."""
        ...


class WeightsBank(Protocol):
    """Named copies of the trainable weights: in memory, sharded, or as LoRA adapters."""

    def save(self, name: str, decay: float = 0.0) -> None:
        """Save the current weights as copy `name`, or move an existing copy towards them.

        copy ← decay·copy + (1-decay)·weights. A copy that does not exist yet becomes equal to the weights.
        """
        ...

    def __contains__(self, name: str) -> bool:
        """Return whether the bank has a copy called `name`."""
        ...

    def adopt(self, name: str) -> None:
        """Overwrite the model's weights by copy `name`."""
        ...

    def using(self, name: str) -> AbstractContextManager[None]:
        """Replace the model's weights by copy `name` inside the block, and restore them afterwards."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the copies in the form in which a checkpoint stores them."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the copies from what `state_dict` returned."""
        ...
