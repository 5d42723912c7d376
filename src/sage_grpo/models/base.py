"""The base class of all adapters of diffusers pipelines: loading, guidance, placement, cached conditions and decoding.

An adapter adds what differs between models: how text becomes tensors, how the transformer is called, and the shape of
latents (docs/add-a-model.md).
"""

import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from diffusers import DiffusionPipeline
from PIL import Image
from torch import Tensor, nn

from sage_grpo.core.protocols import Condition, Prompt
from sage_grpo.core.video_model import VideoModel
from sage_grpo.models.conditions import ConditionStore, fingerprint
from sage_grpo.models.encoders import LeftOut
from sage_grpo.models.errors import ModelError
from sage_grpo.models.guidance import in_turn
from sage_grpo.models.loading import empty_parts, full_size, precisions, read_image
from sage_grpo.models.offload import onloaded

__all__ = ["JOINT_ATTENTION", "NEGATIVE", "DiffusersModel", "ModelError", "read_image"]

NEGATIVE = "negative_"
ATTENTION = ("to_q", "to_k", "to_v", "to_out.0")
JOINT_ATTENTION = (*ATTENTION, "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")  # to pixels and text together
Gradient = Literal["both", "conditional"]


class DiffusersModel(VideoModel):
    """A diffusers pipeline behind the `VideoModel` contract.

    It has no sampling loop, scheduler or training code of its own.
    """

    pipeline_class: ClassVar[type[DiffusionPipeline]]
    denoisers: ClassVar[Sequence[str]] = ("transformer",)  # what is trained, by its name in the pipeline
    resizable = autocasts = True
    encoders: Sequence[str] = ("text_encoder",)  # what is only needed to encode
    decoders: Sequence[str] = ("vae",)  # what is only needed to decode
    blocks: str = "transformer_blocks"  # the repeated layers inside a denoiser
    lora_targets: Sequence[str] = ATTENTION
    float32_parts: ClassVar[tuple[str, ...]] = ()  # components that lose quality in half precision
    text_tokens: int = 0  # to which texts are filled up, where the model does that
    frame_step: ClassVar[int] = 1  # frames are a multiple of this plus one
    default_size: ClassVar[tuple[int, int, int]]  # frames, height, width that the model was made for
    tiny_size: ClassVar[tuple[int, int, int]]  # the same for the checkpoint of `tiny()`
    tiny_options: ClassVar[Mapping[str, Any]] = {}
    # For plans: sizes of released encoders, and of networks unlike their class's default by a word in their name.
    encoder_sizes: ClassVar[dict[str, Mapping[str, Any]]] = {}
    released: ClassVar[Mapping[str, dict[str, Mapping[str, Any]]]] = {}

    def __init__(
        self,
        pipe: Any,
        *,
        frames: int | None = None,
        height: int | None = None,
        width: int | None = None,
        guidance_scale: float | None = None,
        guidance_gradient: Gradient = "both",
        negative_prompt: str = "",
        conditions: str | Path | None = None,
    ) -> None:
        self.pipe = pipe
        for denoiser in self._denoisers():
            denoiser.requires_grad_(True).eval()
        for name in (*self.encoders, *self.decoders):
            if (part := getattr(pipe, name, None)) is not None:
                part.requires_grad_(False).eval()
        layers = (layer for block in self.shard_blocks for layer in block.modules() if isinstance(layer, nn.Linear))
        self._layer = next(layers)  # has device and dtype; diffusers looks through all parameters
        pipe.vae.enable_slicing()  # one video at a time: some decoders take no more
        defaults = self.own_size()
        self.frames, self.height, self.width = frames or defaults[0], height or defaults[1], width or defaults[2]
        self.guidance_scale = self.own_guidance() if guidance_scale is None else guidance_scale
        self.guidance_gradient: Gradient = guidance_gradient
        self.negative_prompt = negative_prompt
        self.offload_device: torch.device | None = None  # where encoders and decoder wait while they are not used
        self.conditions = ConditionStore(conditions)
        self._fingerprint: str | None = None
        self.left_out: LeftOut | None = None  # encoders that are only loaded while there is something to encode
        self.check_size()

    # What an adapter provides ------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def tiny(cls) -> Any:
        """Return a pipeline of the real classes at toy size, with random weights, for rehearsals and tests."""

    @abstractmethod
    def embed_text(self, text: str) -> dict[str, Tensor]:
        """Return the embeddings of one text: tensors (1, …) under the names that `predict` reads from its `inputs`."""

    def embed_image(self, image: Image.Image) -> dict[str, Tensor]:
        """Return the transformer's inputs for a given first frame: tensors (1, …) by name.

        Only image-to-video models define this method.
        """
        raise NotImplementedError

    @abstractmethod
    def predict(self, x: Tensor, sigma: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the transformer's velocity, shaped like `x`, before the two branches of guidance are combined.

        Args:
            x: Latents (B, …).
            sigma: Noise levels (B,).
            inputs: The tensors of `embed_text` and `embed_image` by name, with one row per sample.
        """

    @abstractmethod
    def latent_shape(self, prompt: Prompt) -> tuple[int, ...]: ...

    @abstractmethod
    def to_pixels(self, x0: Tensor) -> Tensor:
        """Decode clean latents (B, …) to pixels (B, C, F, H, W) in [-1, 1]."""

    def text_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor of `embed_text`, without the batch axis, so that a plan needs no encoder.

        Raises:
            ModelError: The adapter does not define these shapes.
        """
        raise ModelError(f"{type(self).__name__} does not say how large its conditions are; plan without the peak")

    @property
    def encoded_tokens(self) -> int:
        """The most tokens, padding included, that the encoders process for one text.

        A plan estimates encoding time by it.
        """
        return self.text_tokens

    def image_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor of `embed_image`, without the batch axis, so that a plan needs no encoder.

        Raises:
            ModelError: The adapter does not define these shapes.
        """
        return DiffusersModel.text_shapes(self)

    def own_guidance(self) -> float:
        """Return the guidance scale for recipes that set none, which is the pipeline's default.

        A scale of 1 is no guidance.
        """
        return 1.0

    def own_size(self) -> tuple[int, int, int]:
        return self.default_size

    def model_input(self, x: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the latents (B, …) that the network gets.

        These are `x`, except that some image-to-video models put the given first frame in place of the noisy one.
        """
        return x

    def pipeline_inputs(self, x: Tensor, inputs: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return the arguments with which diffusers' pipeline starts at latents `x`, with this model's guidance.

        Only the contract (`models/contract.py`) uses them, to compare the pipeline's results with ours.
        """
        return {"latents": self.model_input(x, inputs)}

    def pipeline_latents(self, found: tuple[Any, ...]) -> Tensor:
        """Return the pipeline's final latents, reshaped to (B, *`latent_shape`). Only the contract uses them.

        Args:
            found: The tuple that the pipeline returned.
        """
        end: Tensor = found[0]
        return end

    # The protocol ------------------------------------------------------------------------------------------

    @classmethod
    def from_pretrained(
        cls,
        path: str,
        *,
        dtype: torch.dtype | None = None,
        frozen_dtype: torch.dtype | None = None,
        revision: str | None = None,
        empty: bool = False,
        without_encoders: bool = False,
        **settings: Any,
    ) -> "DiffusersModel":
        """Load the model from a folder or the hub, with diffusers' own loading code. Only safetensors files are read.

        Args:
            path: A folder, or the name of a repository on the hub.
            dtype: Precision of the networks to be trained, by default float32.
            frozen_dtype: Precision of the other components, by default `dtype`; those in `float32_parts` are float32.
            empty: Make the networks to be trained without weights, which are loaded later, shard by shard.
            without_encoders: Load the encoders only to encode a text or image whose embedding is not stored, then free
                them.
            settings: Arguments of the constructor, such as `frames`.
        """
        if path.startswith((".", "/", "~")) and not Path(path).expanduser().is_dir():
            raise ModelError(f"model.path: there is no folder {path}")
        kinds = precisions(cls, dtype or torch.float32, frozen_dtype)
        try:
            local = Path(path).is_dir() or not (empty or without_encoders)
            folder = path if local else cls.pipeline_class.download(path, revision=revision)
            parts = empty_parts(cls.pipeline_class, folder, cls.denoisers, kinds) if empty else {}
            if without_encoders:
                components = inspect.signature(cls.pipeline_class).parameters
                parts |= {name: None for name in cls.encoders if name in components}
            pipe = cls.pipeline_class.from_pretrained(
                folder, dtype=kinds, revision=revision, use_safetensors=True, **parts
            )
        except (OSError, ValueError, TypeError) as error:
            raise ModelError(
                f"model.path: {path!r} is not a {cls.pipeline_class.__name__} checkpoint that diffusers can load: "
                f"{str(error).splitlines()[0]}"
            ) from error
        pipe.set_progress_bar_config(disable=True)
        model = cls(pipe, **settings)
        model.folder = str(folder)
        model.left_out = LeftOut(Path(folder).expanduser(), kinds) if without_encoders else None
        return model

    @classmethod
    def outline(
        cls,
        path: str | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        frozen_dtype: torch.dtype | None = None,
        **settings: Any,
    ) -> "DiffusersModel":
        """Return the model with all networks at full size but without weights, for a plan.

        If `path` is a folder, sizes are read from its checkpoint. Otherwise they are those of the released model.
        """
        small = cls.tiny()
        sizes = next((sizes for word, sizes in cls.released.items() if word in (path or "")), {})
        kinds = precisions(cls, dtype, frozen_dtype)
        names = (*cls.denoisers, *cls.decoders, *cls.encoders)
        parts = full_size(small, path, names, kinds, cls.encoder_sizes | sizes)
        own = {name: small.config[name] for name in inspect.signature(cls.pipeline_class).parameters}
        return cls(cls.pipeline_class(**(own | small.components | parts)), **settings)

    def _denoisers(self) -> list[Any]:
        parts = [getattr(self.pipe, name, None) for name in self.denoisers]
        return [part for part in parts if part is not None]

    @property
    def module(self) -> nn.Module:  # type: ignore[override] # read-only here: the pipeline holds it
        parts = {name: getattr(self.pipe, name, None) for name in self.denoisers}
        present = {name: part for name, part in parts.items() if part is not None}
        return next(iter(present.values())) if len(present) == 1 else nn.ModuleDict(present)

    @property
    def shard_blocks(self) -> Sequence[nn.Module]:
        return [block for part in self._denoisers() for block in part.get_submodule(self.blocks).children()]

    @property
    def device(self) -> torch.device:
        return self._layer.weight.device

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override] # read-only here: it follows from the weights
        """Precision of the transformer's inputs: `autocast_dtype` if it is set, otherwise that of the weights."""
        return self.autocast_dtype or self._layer.weight.dtype

    def place(self, device: torch.device, offload_device: torch.device | None = None) -> None:
        """Move the model to `device`.

        If `offload_device` is given, encoders and decoder stay on that device whenever they are not used.
        """
        self.offload_device = offload_device if offload_device != device else None
        for part in self._denoisers():
            if not self._layer.weight.is_meta:  # weights that are left out come later, shard by shard
                part.to(device)
        for name in (*self.encoders, *self.decoders):
            if (waiting := getattr(self.pipe, name, None)) is not None:
                waiting.to(self.offload_device or device)

    @contextmanager
    def on_device(self, *names: str) -> Iterator[None]:
        """Let the named components compute on the model's device inside the block, even if they are offloaded."""
        parts = [part for name in names if (part := getattr(self.pipe, name, None)) is not None]
        with onloaded(parts, self.device) if self.offload_device else nullcontext():
            yield

    @contextmanager
    def resized(self, **size: int) -> Iterator[None]:
        before = {name: getattr(self, name) for name in size}
        try:
            vars(self).update(size)
            self.check_size()
            yield
        finally:
            vars(self).update(before)

    @torch.no_grad()
    def encode(self, prompts: Sequence[Prompt]) -> Condition:
        """Return the network's inputs for the prompts: tensors (B, …) by name, with one row per prompt.

        Embeddings are stored. If the model has a folder `conditions`, each text or image is embedded only once, even
        across runs.
        """
        rows = [self._row(prompt) for prompt in prompts]
        return {name: torch.cat([row[name] for row in rows]).to(self.device) for name in rows[0]}

    def _parts(self, prompt: Prompt) -> Iterator[tuple[str, str, bytes, Callable[[], dict[str, Tensor]]]]:
        """Yield (name prefix, kind, content, embedding function) for each text or image that a prompt needs.

        The kind is "text" or "image". The prefix of the negative prompt is `negative_`, all others are empty.
        """
        for prefix, text in (("", prompt.text), (NEGATIVE, self.negative_prompt))[: 1 + self.guided]:
            yield prefix, "text", text.encode(), partial(self.embed_text, text)
        if self.needs_image:
            image = read_image(prompt)
            content = b"%d %d %d " % (self.frames, self.height, self.width) + image.tobytes()
            yield "", "image", content, partial(self.embed_image, image)

    def _row(self, prompt: Prompt) -> dict[str, Tensor]:
        return {
            prefix + name: value
            for prefix, kind, content, make in self._parts(prompt)
            for name, value in self._embedded(kind, content, make).items()
        }

    def lacks(self, prompt: Prompt) -> bool:
        if self.left_out is None:
            return False
        return not all(self.conditions.has(self._space(kind), content) for _, kind, content, _ in self._parts(prompt))

    def _embedded(self, kind: str, content: bytes, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        def visit() -> dict[str, Tensor]:
            with self.encoding(), self.on_device(*self.encoders, *(["vae"] if kind == "image" else [])):
                return {name: value.detach().cpu() for name, value in make().items()}

        return self.conditions.get(self._space(kind), content, visit)

    def _space(self, kind: str) -> tuple[str, ...]:
        """Return what an embedding depends on besides its text or image: the encoders' fingerprint, kind, precision."""
        if self._fingerprint is None:
            settings, folder = self._encoding_settings(), None
            if self.left_out:
                settings, folder = f"{settings} {self.left_out.kinds}", self.left_out.folder
            self._fingerprint = fingerprint(self.pipe, self.encoders, settings, folder)
        return self._fingerprint, kind, str(self.dtype)

    @contextmanager
    def encoding(self) -> Iterator[None]:
        missing = self.left_out and all(getattr(self.pipe, name, None) is None for name in self.encoders)
        parts = self.left_out.load(self.pipe, self.encoders) if self.left_out and missing else {}
        try:
            self.pipe.register_modules(**{name: part.to(self.device) for name, part in parts.items()})
            yield
        finally:
            self.pipe.register_modules(**dict.fromkeys(parts))

    def _encoding_settings(self) -> str:
        return type(self).__name__

    def velocity(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        inputs = {name: value for name, value in condition.items() if not name.startswith(NEGATIVE)}
        with torch.autocast(x.device.type, self.autocast_dtype) if self.autocast_dtype else nullcontext():
            if not self.guided:
                return self.predict(x, sigma, inputs)
            against = {k.removeprefix(NEGATIVE): t for k, t in condition.items() if k.startswith(NEGATIVE)}
            branches = self._together if self.branches_together else self._one_by_one
            return self.guide(*branches(x, sigma, inputs, inputs | against), sigma)

    def _together(self, x: Tensor, sigma: Tensor, inputs: Condition, against: Condition) -> tuple[Tensor, Tensor]:
        """Return the velocities of both branches of guidance, the prompt's first, from one pass with twice the batch.

        Compared with two passes, sharded weights are gathered once instead of twice.
        """
        both = self.predict(torch.cat([x, x]), torch.cat([sigma, sigma]), self.beside(inputs, against))
        v, unguided = both.chunk(2)
        return v, unguided

    def _one_by_one(self, x: Tensor, sigma: Tensor, inputs: Condition, against: Condition) -> tuple[Tensor, Tensor]:
        v = self.predict(x, sigma, inputs)
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.guidance_gradient == "both"):
            unguided = self.predict(x, sigma, against)
        return (in_turn(v), in_turn(unguided)) if self.branches_in_turn else (v, unguided)

    def beside(self, positive: Condition, negative: Condition) -> Condition:
        """Join the inputs of the two branches of guidance into one batch (2B, …), the prompt's branch first."""
        return {name: torch.cat([value, negative[name]]) for name, value in positive.items()}

    def guide(self, positive: Tensor, negative: Tensor, sigma: Tensor) -> Tensor:
        return negative + self.guidance_scale * (positive - negative)

    @torch.no_grad()
    def decode(self, x0: Tensor) -> Tensor:
        with self.on_device("vae"):
            pixels = self.to_pixels(x0.to(self.pipe.vae.dtype))
        frames = ((pixels.float() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
        return frames.permute(0, 2, 3, 4, 1).contiguous()

    def save_pretrained(self, directory: str) -> None:
        with self.encoding():
            self.pipe.save_pretrained(directory)

    # Small helpers of the adapters ---------------------------------------------------------------------------

    def timestep(self, sigma: Tensor) -> Tensor:
        steps: int = self.pipe.scheduler.config.num_train_timesteps
        return sigma * steps

    def blank_condition(self, batch: int) -> Condition:
        """Return tensors of zeros with the names and shapes that `encode` would return for `batch` prompts."""
        shapes = self.text_shapes()
        shapes |= {NEGATIVE + name: shape for name, shape in shapes.items()} if self.guided else {}
        shapes |= self.image_shapes() if self.needs_image else {}
        return {name: torch.zeros(batch, *shape, dtype=self.dtype) for name, shape in shapes.items()}

    def check_size(self) -> None:
        step, wrong = self.frame_step, []
        if (self.frames - 1) % step:
            near = max(round((self.frames - 1) / step), 0) * step + 1
            wrong.append(f"model.frames={self.frames} must be a multiple of {step} plus 1; use {near}")
        for name, value in (("height", self.height), ("width", self.width)):
            unit = self.pixel_step()
            if value % unit:
                wrong.append(
                    f"model.{name}={value} must be a multiple of {unit}; use {max(round(value / unit), 1) * unit}"
                )
        if wrong:
            raise ModelError("; ".join(wrong))

    def pixel_step(self) -> int:  # height and width are multiples of this
        return 1
