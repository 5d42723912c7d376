"""The interface through which the algorithm uses a flow-matching video model."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sage_grpo.core.comm import SequenceParallel
from sage_grpo.core.protocols import Condition, Prompt, Videos
from sage_grpo.errors import UserError


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

    min_sigma: float = 0.0
    """Noise level below which rollouts, references and samples evaluate the network without its adapters."""
    without_adapters: Callable[[], AbstractContextManager[None]] = nullcontext
    """Function that returns a context in which the network computes without its adapters."""

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


def trained_state(module: nn.Module) -> dict[str, Tensor]:
    """Return what training changes in a network: its trainable parameters and its buffers, by name."""
    trained = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
    return trained | dict(module.named_buffers())


@torch.no_grad()
def load_trained_state(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Overwrite parameters and buffers of a network by those that `trained_state` returned."""
    targets = dict(module.named_parameters()) | dict(module.named_buffers())
    for name, value in state.items():
        targets[name].copy_(value)


def whole(x: Tensor) -> Tensor:
    """Return `x` itself, or the full tensor if each process has only a shard of `x`.

    Use it only for small results, never for weights, because every process gets the full tensor.
    """
    gathered: Tensor = x.full_tensor() if hasattr(x, "full_tensor") else x
    return gathered
