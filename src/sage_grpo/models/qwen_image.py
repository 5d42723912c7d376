"""Adapter of the image model Qwen-Image: its videos have one frame.

A latent is a row of tokens: (rows × columns, channels).
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import diffusers as df
import torch
from torch import Tensor

from sage_grpo.core.protocols import Prompt
from sage_grpo.models import tiny
from sage_grpo.models.base import JOINT_ATTENTION
from sage_grpo.models.image_models import refuse_frames
from sage_grpo.models.ragged_text import OwnLengths, lengths_of
from sage_grpo.registry import model


@model("qwen-image", extra="models")
class QwenImage(OwnLengths):
    pipeline_class: ClassVar[Any] = df.QwenImagePipeline
    lora_targets = JOINT_ATTENTION
    typical_text = 100  # tokens that a plan counts for a prompt
    default_size = (1, 1328, 1328)
    tiny_size = (1, 32, 32)
    tiny_options: ClassVar[Mapping[str, Any]] = {"text_tokens": 192}
    encoder_sizes: ClassVar[dict[str, Mapping[str, Any]]] = {"text_encoder": tiny.QWEN25_VL_7B}

    def __init__(self, pipe: Any, *, text_tokens: int = 512, **settings: Any) -> None:
        self.text_tokens = text_tokens
        super().__init__(pipe, **settings)
        refuse_frames(self)
        last = len(self.shard_blocks) - 1  # nobody reads the text stream after the last block
        self.unused = (
            rf"transformer_blocks\.{last}\.(attn\.to_add_out|txt_mlp)",
            rf"transformer_blocks\.{last}\.attn\.(add_q_proj|norm_added_q)",
        )

    def own_guidance(self) -> float:
        return 4.0

    def guide(self, positive: Tensor, negative: Tensor, sigma: Tensor) -> Tensor:
        """Return the guided velocity (B, tokens, channels), with each token rescaled to its length in `positive`."""
        guided = super().guide(positive, negative, sigma)
        before, after = (torch.linalg.vector_norm(v, dim=-1, keepdim=True) for v in (positive, guided))
        out: Tensor = guided * (before / after)
        return out

    def pixel_step(self) -> int:
        return int(self.pipe.vae_scale_factor * 2)

    @property
    def grid(self) -> tuple[int, int]:
        """The numbers of rows and columns of a picture's tokens."""
        return self.height // self.pixel_step(), self.width // self.pixel_step()

    def latent_shape(self, prompt: Prompt) -> tuple[int, ...]:
        rows, columns = self.grid
        return (rows * columns, self.pipe.transformer.config.in_channels)

    def embed_text(self, text: str) -> dict[str, Tensor]:
        embedding, _ = self.pipe.encode_prompt([text], device=self.device, max_sequence_length=self.text_tokens)
        return {"text": embedding.to(self.dtype)}

    def text_shapes(self) -> dict[str, tuple[int, ...]]:
        width = self.pipe.transformer.config.joint_attention_dim
        return {"text": (min(self.typical_text, self.text_tokens), width)}

    @property
    def encoded_tokens(self) -> int:
        """The number of tokens of a typical text. Texts are encoded one at a time, so they are not padded."""
        return min(self.typical_text, self.text_tokens)

    def _encoding_settings(self) -> str:
        return f"{super()._encoding_settings()} {self.text_tokens}"

    def predict(self, x: Tensor, sigma: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        text, lengths = inputs["text"], lengths_of(inputs, "text")
        places, ends = torch.arange(text.shape[1], device=x.device), torch.tensor(lengths, device=x.device)
        mixed = len(set(lengths)) > 1  # else there is nothing to mask
        out: Tensor = self.pipe.transformer(
            hidden_states=x.to(self.dtype),
            timestep=sigma.to(self.dtype),
            encoder_hidden_states=text,
            encoder_hidden_states_mask=(places < ends[:, None]).long() if mixed else None,
            img_shapes=[[(1, *self.grid)]] * len(x),
            return_dict=False,
        )[0]
        return out

    def to_pixels(self, x0: Tensor) -> Tensor:
        p, vae = self.pipe, self.pipe.vae
        latents = p._unpack_latents(x0, self.height, self.width, p.vae_scale_factor)
        mean, std = (
            torch.tensor(values, device=x0.device, dtype=x0.dtype).view(1, -1, 1, 1, 1)
            for values in (vae.config.latents_mean, vae.config.latents_std)
        )
        out: Tensor = vae.decode(latents * std + mean, return_dict=False)[0]
        return out

    def pipeline_inputs(self, x: Tensor, inputs: Mapping[str, Tensor]) -> dict[str, Any]:
        return {"latents": x, "true_cfg_scale": self.guidance_scale, "guidance_scale": None}

    @classmethod
    def tiny(cls) -> Any:
        def make() -> Any:
            tokenizer = tiny.qwen_tokenizer(0)
            transformer = df.QwenImageTransformer2DModel(
                patch_size=2,
                in_channels=16,
                out_channels=4,
                num_layers=2,
                attention_head_dim=16,
                num_attention_heads=2,
                joint_attention_dim=16,
                axes_dims_rope=(4, 6, 6),
            )
            vae = df.AutoencoderKLQwenImage(
                base_dim=8,
                z_dim=4,
                dim_mult=[1, 1, 1, 1],
                num_res_blocks=1,
                latents_mean=[0.1, -0.2, 0.0, 0.3],
                latents_std=[1.2, 0.8, 1.0, 1.5],
            )
            return cls.pipeline_class(
                scheduler=df.FlowMatchEulerDiscreteScheduler(
                    use_dynamic_shifting=True, max_shift=0.9, shift_terminal=0.02
                ),
                vae=vae,
                text_encoder=tiny.qwen_vl_encoder(16, len(tokenizer)),
                tokenizer=tokenizer,
                transformer=transformer,
            )

        return tiny.seeded(make)
