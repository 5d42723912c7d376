"""Adapter of Z-Image, a small and fast image model: its videos have one frame."""

from collections.abc import Mapping
from typing import Any, ClassVar

import diffusers as df
import torch
from torch import Tensor, nn

from sage_grpo.core.protocols import Prompt
from sage_grpo.models import tiny
from sage_grpo.models.image_models import refuse_frames, tiny_vae
from sage_grpo.models.ragged_text import OwnLengths, lengths_of
from sage_grpo.registry import model


@model("z-image", extra="models")
class ZImage(OwnLengths):
    """Z-Image, converted to the time, velocity and guidance scale of all other models here.

    The network's own time and velocity run from noise to picture; `predict` reverses both. The pipeline's guidance
    scale is 0 without guidance. Here it is 1, so a scale of 5 here is 4 in the pipeline.
    """

    pipeline_class: ClassVar[Any] = df.ZImagePipeline
    blocks = "layers"
    typical_text = 100  # tokens that a plan counts for a prompt
    default_size = (1, 1024, 1024)
    tiny_size = (1, 32, 32)
    tiny_options: ClassVar[Mapping[str, Any]] = {"text_tokens": 64}
    encoder_sizes: ClassVar[dict[str, Mapping[str, Any]]] = {
        "text_encoder": tiny.QWEN3_4B,
        "vae": {
            "block_out_channels": (128, 256, 512, 512),
            "down_block_types": ("DownEncoderBlock2D",) * 4,
            "up_block_types": ("UpDecoderBlock2D",) * 4,
            "latent_channels": 16,
            "layers_per_block": 2,
            "scaling_factor": 0.3611,
            "shift_factor": 0.1159,
            "use_quant_conv": False,
            "use_post_quant_conv": False,
        },
    }

    def __init__(self, pipe: Any, *, text_tokens: int = 512, **settings: Any) -> None:
        self.text_tokens = text_tokens
        super().__init__(pipe, **settings)
        refuse_frames(self)

    def own_guidance(self) -> float:
        return 5.0

    @property
    def shard_blocks(self) -> list[nn.Module]:
        """All repeated layers, including those that process the picture or the text alone."""
        network = self.pipe.transformer
        return [block for part in ("noise_refiner", "context_refiner", "layers") for block in getattr(network, part)]

    def pixel_step(self) -> int:
        return int(self.pipe.vae_scale_factor * 2)

    def latent_shape(self, prompt: Prompt) -> tuple[int, ...]:
        space = self.pipe.vae_scale_factor
        return (self.pipe.transformer.config.in_channels, self.height // space, self.width // space)

    def embed_text(self, text: str) -> dict[str, Tensor]:
        (embedding,), _ = self.pipe.encode_prompt(
            [text], device=self.device, do_classifier_free_guidance=False, max_sequence_length=self.text_tokens
        )
        return {"text": embedding[None].to(self.dtype)}

    def text_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"text": (min(self.typical_text, self.text_tokens), self.pipe.transformer.config.cap_feat_dim)}

    def _encoding_settings(self) -> str:
        return f"{super()._encoding_settings()} {self.text_tokens}"

    def predict(self, x: Tensor, sigma: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        texts = [text[:n] for text, n in zip(inputs["text"], lengths_of(inputs, "text"), strict=True)]
        out = self.pipe.transformer(list(x.to(self.dtype)[:, :, None]), 1 - sigma, texts, return_dict=False)[0]
        return -torch.stack(list(out))[:, :, 0]

    def to_pixels(self, x0: Tensor) -> Tensor:
        vae = self.pipe.vae
        out: Tensor = vae.decode(x0 / vae.config.scaling_factor + vae.config.shift_factor, return_dict=False)[0]
        return out[:, :, None]

    def pipeline_inputs(self, x: Tensor, inputs: Mapping[str, Tensor]) -> dict[str, Any]:
        return {"latents": x, "guidance_scale": self.guidance_scale - 1}

    @classmethod
    def tiny(cls) -> Any:
        def make() -> Any:
            tokenizer = tiny.qwen_tokenizer(0)
            transformer = df.ZImageTransformer2DModel(
                in_channels=4,
                dim=32,
                n_layers=2,
                n_refiner_layers=1,
                n_heads=2,
                n_kv_heads=2,
                cap_feat_dim=16,
                axes_dims=[4, 6, 6],
                axes_lens=[256, 32, 32],
            )
            vae = tiny_vae(0.3611, 0.1159)
            return cls.pipeline_class(
                scheduler=df.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=False, shift=3.0),
                vae=vae,
                text_encoder=tiny.qwen3_encoder(16, len(tokenizer)),
                tokenizer=tokenizer,
                transformer=transformer,
            )

        return tiny.seeded(make)
