"""Adapters of Wan 2.1 and 2.2 for text- and image-to-video.

Wan 2.2 A14B has two experts, one for high and one for low noise.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import diffusers as df
import torch
import transformers as hf
from PIL import Image
from torch import Tensor

from sage_grpo.core.comm import SequenceParallel
from sage_grpo.core.protocols import Prompt
from sage_grpo.models import tiny
from sage_grpo.models.base import DiffusersModel, ModelError
from sage_grpo.models.context_parallel import check_sharing, share_by_plan
from sage_grpo.registry import model


@model("wan", extra="models")
class Wan(DiffusersModel):
    """Wan 2.1, text-to-video, and the base class of all other models of the Wan family."""

    pipeline_class: ClassVar[Any] = df.WanPipeline
    denoisers = ("transformer", "transformer_2")
    encoders = ("text_encoder", "image_encoder")
    blocks = "blocks"
    lora_targets = ("to_q", "to_k", "to_v", "to_out.0", "ffn.net.0.proj", "ffn.net.2")
    float32_parts: ClassVar[tuple[str, ...]] = ("vae",)  # as the model's own documentation asks
    frame_step = 4
    frame_rate = 16.0
    default_size = (81, 480, 832)
    tiny_size = (5, 16, 16)
    tiny_options: ClassVar[Mapping[str, Any]] = {"text_tokens": 24}
    encoder_sizes: ClassVar[dict[str, Mapping[str, Any]]] = {
        "text_encoder": tiny.T5_XXL | {"vocab_size": 256384},
        "image_encoder": {
            "hidden_size": 1280,
            "intermediate_size": 5120,
            "num_hidden_layers": 32,
            "num_attention_heads": 16,
            "image_size": 224,
            "patch_size": 14,
        },
    }
    released: ClassVar[Mapping[str, dict[str, Mapping[str, Any]]]] = {  # its class is the 14B by default
        "1.3B": {"transformer": {"num_attention_heads": 12, "num_layers": 30, "ffn_dim": 8960}},
        "5B": {
            "transformer": {
                "num_attention_heads": 24,
                "num_layers": 30,
                "ffn_dim": 14336,
                "in_channels": 48,
                "out_channels": 48,
            },
            "vae": {
                "base_dim": 160,
                "decoder_base_dim": 256,
                "z_dim": 48,
                "in_channels": 12,
                "out_channels": 12,
                "patch_size": 2,
                "is_residual": True,
                "scale_factor_spatial": 16,
                "dim_mult": [1, 2, 4, 4],
                "temperal_downsample": [False, True, True],
            },
        },
    }

    def __init__(
        self, pipe: Any, *, text_tokens: int = 512, guidance_scale_2: float | None = None, **settings: Any
    ) -> None:
        self.text_tokens = text_tokens
        super().__init__(pipe, **settings)
        self.guidance_scale_2 = self.guidance_scale if guidance_scale_2 is None else guidance_scale_2
        for setting, meaning in (("boundary_ratio", "two experts"), ("expand_timesteps", "a noise level a token")):
            there, expected = bool(pipe.config[setting]), setting in self.tiny_pipeline
            if there != expected:
                raise ModelError(
                    f"this Wan checkpoint has {'' if there else 'not '}{meaning} ({setting} in its index), unlike "
                    f"{type(self).__name__}: use model.type wan for 2.1, wan2.2 for 2.2 A14B, wan2.2-5b for 2.2 5B, "
                    "each with -i2v for image-to-video"
                )

    def share_sequence(self, sp: SequenceParallel) -> None:
        _, *latents = self.latent_shape(Prompt(""))
        for network in self._denoisers():
            patches = zip(latents, network.config.patch_size, strict=True)
            check_sharing(
                sp.size, network.config.num_attention_heads, math.prod(size // patch for size, patch in patches)
            )
            plan = {module: cut for module, cut in network._cp_plan.items() if module or self.per_token}
            share_by_plan(network, (block.attn1 for block in network.blocks), sp, plan)

    def own_guidance(self) -> float:
        return 5.0

    @property
    def per_token(self) -> bool:
        """Whether each token has its own noise level, as in Wan 2.2 5B, so that a given first frame can be clean."""
        return bool(self.pipe.config.expand_timesteps)

    def pixel_step(self) -> int:
        _, high, wide = self._denoisers()[0].config.patch_size
        return int(self.pipe.vae_scale_factor_spatial * max(high, wide))

    def latent_shape(self, prompt: Prompt) -> tuple[int, ...]:
        p, space = self.pipe, self.pipe.vae_scale_factor_spatial
        frames = (self.frames - 1) // p.vae_scale_factor_temporal + 1
        return (p.vae.config.z_dim, frames, self.height // space, self.width // space)

    def embed_text(self, text: str) -> dict[str, Tensor]:
        embedding, _ = self.pipe.encode_prompt(
            [text], do_classifier_free_guidance=False, max_sequence_length=self.text_tokens, device=self.device
        )
        return {"text": embedding.to(self.dtype)}

    def text_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"text": (self.text_tokens, self._denoisers()[0].config.text_dim)}

    def _encoding_settings(self) -> str:
        return f"{super()._encoding_settings()} {self.text_tokens}"

    def high_noise(self, sigma: Tensor) -> Tensor:
        """Return for each sample whether the first expert, the one for high noise, computes it: booleans (B,)."""
        boundary = self.pipe.config.boundary_ratio
        steps = self.pipe.scheduler.config.num_train_timesteps
        return torch.ge(self.timestep(sigma), (boundary or 0.0) * steps)

    def predict(self, x: Tensor, sigma: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        if len(self._denoisers()) == 1:  # nothing to choose: the host need not wait for the noise levels
            return self._ask(self._denoisers()[0], x, sigma, inputs)
        high = self.high_noise(sigma)
        if bool(high.all()) or bool((~high).all()):
            return self._ask(self.pipe.transformer if bool(high.all()) else self.pipe.transformer_2, x, sigma, inputs)
        out = torch.empty_like(x, dtype=self.dtype)  # timesteps of both experts in one batch
        for expert, rows in ((self.pipe.transformer, high), (self.pipe.transformer_2, ~high)):
            out[rows] = self._ask(expert, x[rows], sigma[rows], {k: v[rows] for k, v in inputs.items()})
        return out

    def _ask(self, expert: Any, x: Tensor, sigma: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        hidden = self.model_input(x, inputs).to(self.dtype)
        if "channels" in inputs:  # mask and latents of the first frame, besides the noisy ones
            hidden = torch.cat([hidden, inputs["channels"].to(self.dtype)], dim=1)
        out: Tensor = expert(
            hidden_states=hidden,
            timestep=self.times(x, sigma, inputs),
            encoder_hidden_states=inputs["text"],
            encoder_hidden_states_image=inputs.get("image"),
            return_dict=False,
        )[0]
        return out

    def times(self, x: Tensor, sigma: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        t = self.timestep(sigma)
        if not self.per_token:
            return t
        _, high, wide = self._denoisers()[0].config.patch_size
        noisy = torch.ones_like(x[:, 0])
        if "first_frame" in inputs:
            noisy[:, 0] = 0
        return noisy[:, :, ::high, ::wide].flatten(1) * t[:, None]

    def guide(self, positive: Tensor, negative: Tensor, sigma: Tensor) -> Tensor:
        scale = torch.where(self.high_noise(sigma), self.guidance_scale, self.guidance_scale_2)
        return negative + scale.to(positive.dtype).view(-1, 1, 1, 1, 1) * (positive - negative)

    def to_pixels(self, x0: Tensor) -> Tensor:
        mean, std = self._statistics(x0)
        out: Tensor = self.pipe.vae.decode(x0 * std + mean, return_dict=False)[0]
        return out

    def _statistics(self, like: Tensor) -> tuple[Tensor, Tensor]:
        config = self.pipe.vae.config
        mean, std = (like.new_tensor(v).view(1, -1, 1, 1, 1) for v in (config.latents_mean, config.latents_std))
        return mean, std

    # The checkpoints of the family differ in these --------------------------------------------------------------

    tiny_transformer: ClassVar[Mapping[str, Any]] = {}
    tiny_pipeline: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def tiny(cls) -> Any:
        def make() -> Any:
            tokenizer = tiny.unigram_tokenizer(512)
            shape = {
                "patch_size": (1, 2, 2),
                "num_attention_heads": 2,
                "attention_head_dim": 12,
                "in_channels": 4,
                "out_channels": 4,
                "text_dim": 16,
                "freq_dim": 16,
                "ffn_dim": 32,
                "num_layers": 2,
            }
            shape |= cls.tiny_transformer
            vae = df.AutoencoderKLWan(
                base_dim=4,
                z_dim=4,
                dim_mult=[1, 1, 1, 1],
                num_res_blocks=1,
                latents_mean=[0.1, -0.2, 0.3, 0.0],
                latents_std=[1.5, 2.0, 1.2, 0.8],
            )
            pipe_settings = dict(cls.tiny_pipeline)
            second = df.WanTransformer3DModel(**shape) if "boundary_ratio" in pipe_settings else None
            return cls.pipeline_class(
                tokenizer=tokenizer,
                text_encoder=tiny.t5_encoder(16, len(tokenizer), "UMT5"),
                vae=vae,
                scheduler=df.UniPCMultistepScheduler(
                    prediction_type="flow_prediction", use_flow_sigmas=True, num_train_timesteps=1000, flow_shift=3.0
                ),
                transformer=df.WanTransformer3DModel(**shape),
                transformer_2=second,
                **pipe_settings,
                **cls.tiny_image_parts(),
            )

        return tiny.seeded(make)

    @classmethod
    def tiny_image_parts(cls) -> dict[str, Any]:
        return {}


@model("wan2.2", extra="models")
class Wan22(Wan):
    """Wan 2.2 A14B, text-to-video, with two experts of equal shape."""

    tiny_pipeline: ClassVar[Mapping[str, Any]] = {"boundary_ratio": 0.875}


@model("wan2.2-5b", extra="models")
class Wan22Small(Wan):
    """Wan 2.2 TI2V 5B, text-to-video."""

    tiny_pipeline: ClassVar[Mapping[str, Any]] = {"expand_timesteps": True}
    default_size = (121, 704, 1280)
    frame_rate = 24.0


@model("wan-i2v", extra="models")
class WanImageToVideo(Wan):
    """Wan 2.1, image-to-video.

    The image's embedding enters cross-attention, and the image's latents are extra channels of the input.
    """

    pipeline_class = df.WanImageToVideoPipeline
    float32_parts = ("vae", "image_encoder")
    needs_image = True
    tiny_transformer: ClassVar[Mapping[str, Any]] = {"in_channels": 12, "image_dim": 16, "added_kv_proj_dim": 24}

    def embed_image(self, image: Image.Image) -> dict[str, Tensor]:
        p, conditions = self.pipe, {}
        pixels = p.video_processor.preprocess(image, height=self.height, width=self.width)
        latents = torch.zeros(1, *self.latent_shape(Prompt("")))
        outputs = p.prepare_latents(
            pixels.to(self.device, torch.float32),
            1,
            p.vae.config.z_dim,
            self.height,
            self.width,
            self.frames,
            torch.float32,
            self.device,
            latents=latents,
        )
        if self._denoisers()[0].config.image_dim is not None:
            conditions["image"] = p.encode_image(image, self.device).to(self.dtype)
        return conditions | {"first_frame" if self.per_token else "channels": outputs[1]}

    def image_shapes(self) -> dict[str, tuple[int, ...]]:
        channels, frames, *size = self.latent_shape(Prompt(""))
        if self.per_token:
            return {"first_frame": (channels, 1, *size)}
        shapes = {"channels": (channels + self.pipe.vae_scale_factor_temporal, frames, *size)}
        if (width := self._denoisers()[0].config.image_dim) is not None:
            vision = self.pipe.image_encoder.config
            shapes["image"] = ((vision.image_size // vision.patch_size) ** 2 + 1, width)
        return shapes

    @classmethod
    def tiny_image_parts(cls) -> dict[str, Any]:
        if "image_dim" not in cls.tiny_transformer:
            return {"image_encoder": None, "image_processor": None}
        processor = hf.CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
        return {"image_encoder": tiny.vision_encoder("CLIP"), "image_processor": processor}


@model("wan2.2-i2v", extra="models")
class Wan22ImageToVideo(WanImageToVideo):
    """Wan 2.2 A14B, image-to-video, with two experts.

    The image's latents are extra channels of the input; no image embedding is used.
    """

    tiny_transformer: ClassVar[Mapping[str, Any]] = {"in_channels": 12}
    tiny_pipeline: ClassVar[Mapping[str, Any]] = {"boundary_ratio": 0.9}


@model("wan2.2-5b-i2v", extra="models")
class Wan22SmallImageToVideo(WanImageToVideo):
    """Wan 2.2 TI2V 5B, image-to-video.

    The first latent frame is the given image, without noise, and is not denoised.
    """

    tiny_transformer: ClassVar[Mapping[str, Any]] = {}
    tiny_pipeline: ClassVar[Mapping[str, Any]] = {"expand_timesteps": True}
    default_size = (121, 704, 1280)
    frame_rate = 24.0

    def model_input(self, x: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([inputs["first_frame"].to(x.dtype), x[:, :, 1:]], dim=2)

    def velocity(self, x: Tensor, sigma: Tensor, condition: Mapping[str, Tensor]) -> Tensor:
        """Return the velocity, shaped like `x`.

        At the given first frame the velocity leads straight to that frame's latents, so the final latents contain them.
        """
        v = super().velocity(x, sigma, condition)
        straight = (x[:, :, :1] - condition["first_frame"]) / sigma.view(-1, 1, 1, 1, 1)
        return torch.cat([straight.to(v.dtype), v[:, :, 1:]], dim=2)
