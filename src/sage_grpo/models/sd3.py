"""Adapter of the image models Stable Diffusion 3 and 3.5: their videos have one frame."""

from collections.abc import Mapping
from typing import Any, ClassVar

import diffusers as df
from torch import Tensor

from sage_grpo.core.protocols import Prompt
from sage_grpo.models import tiny
from sage_grpo.models.base import JOINT_ATTENTION, DiffusersModel
from sage_grpo.models.image_models import refuse_frames, tiny_vae
from sage_grpo.registry import model


@model("sd3", extra="models")
class StableDiffusion3(DiffusersModel):
    pipeline_class: ClassVar[Any] = df.StableDiffusion3Pipeline
    encoders = ("text_encoder", "text_encoder_2", "text_encoder_3")
    lora_targets = JOINT_ATTENTION
    default_size = (1, 1024, 1024)
    tiny_size = (1, 32, 32)
    tiny_options: ClassVar[Mapping[str, Any]] = {"text_tokens": 24}
    encoder_sizes: ClassVar[dict[str, Mapping[str, Any]]] = {
        "text_encoder": {
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "projection_dim": 768,
        },
        "text_encoder_2": {
            "hidden_size": 1280,
            "intermediate_size": 5120,
            "num_hidden_layers": 32,
            "num_attention_heads": 20,
            "projection_dim": 1280,
        },
        "text_encoder_3": tiny.T5_XXL,
    }

    def __init__(self, pipe: Any, *, text_tokens: int = 256, **settings: Any) -> None:
        self.text_tokens = text_tokens
        super().__init__(pipe, **settings)
        refuse_frames(self)
        last = len(self.shard_blocks) - 1  # nobody reads the text stream after the last block
        self.unused = (rf"transformer_blocks\.{last}\.attn\.(to_add_out|norm_added_q|add_q_proj)",)

    def own_guidance(self) -> float:
        return 7.0

    def pixel_step(self) -> int:
        return int(self.pipe.vae_scale_factor * self.pipe.patch_size)

    def latent_shape(self, prompt: Prompt) -> tuple[int, ...]:
        space = self.pipe.vae_scale_factor
        return (self.pipe.transformer.config.in_channels, self.height // space, self.width // space)

    def embed_text(self, text: str) -> dict[str, Tensor]:
        embedding, _, pooled, _ = self.pipe.encode_prompt(
            [text],
            None,
            None,
            device=self.device,
            do_classifier_free_guidance=False,
            max_sequence_length=self.text_tokens,
        )
        return {"text": embedding.to(self.dtype), "pooled": pooled.to(self.dtype)}

    def text_shapes(self) -> dict[str, tuple[int, ...]]:
        config = self.pipe.transformer.config
        tokens = self.pipe.tokenizer_max_length + self.text_tokens
        return {"text": (tokens, config.joint_attention_dim), "pooled": (config.pooled_projection_dim,)}

    def _encoding_settings(self) -> str:
        return f"{super()._encoding_settings()} {self.text_tokens}"

    def predict(self, x: Tensor, sigma: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        out: Tensor = self.pipe.transformer(
            hidden_states=x.to(self.dtype),
            timestep=self.timestep(sigma),
            encoder_hidden_states=inputs["text"],
            pooled_projections=inputs["pooled"],
            return_dict=False,
        )[0]
        return out

    def to_pixels(self, x0: Tensor) -> Tensor:
        vae = self.pipe.vae
        out: Tensor = vae.decode(x0 / vae.config.scaling_factor + vae.config.shift_factor, return_dict=False)[0]
        return out[:, :, None]

    @classmethod
    def tiny(cls) -> Any:
        def make() -> Any:
            clip, t5 = tiny.clip_tokenizer(77), tiny.unigram_tokenizer(256)
            transformer = df.SD3Transformer2DModel(
                sample_size=16,
                patch_size=2,
                in_channels=4,
                out_channels=4,
                num_layers=2,
                attention_head_dim=8,
                num_attention_heads=4,
                joint_attention_dim=32,
                caption_projection_dim=32,
                pooled_projection_dim=32,
                pos_embed_max_size=16,
                dual_attention_layers=(0,),
                qk_norm="rms_norm",
            )
            vae = tiny_vae(1.5305, 0.0609)
            return cls.pipeline_class(
                transformer=transformer,
                scheduler=df.FlowMatchEulerDiscreteScheduler(shift=3.0),
                vae=vae,
                text_encoder=tiny.clip_text(16, len(clip), 77),
                tokenizer=clip,
                text_encoder_2=tiny.clip_text(16, len(clip), 77),
                tokenizer_2=clip,
                text_encoder_3=tiny.t5_encoder(32, len(t5)),
                tokenizer_3=t5,
            )

        return tiny.seeded(make)
