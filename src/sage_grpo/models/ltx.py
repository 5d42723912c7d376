"""Adapters of LTX-Video for text- and image-to-video.

A latent is a row of tokens: (frames × rows × columns, channels).
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import diffusers as df
import torch
from PIL import Image
from torch import Tensor

from sage_grpo.core.comm import SequenceParallel
from sage_grpo.core.protocols import Prompt
from sage_grpo.models import tiny
from sage_grpo.models.base import DiffusersModel
from sage_grpo.models.context_parallel import check_sharing, cut, share_by_plan
from sage_grpo.registry import model


@model("ltx", extra="models")
class LTXVideo(DiffusersModel):
    pipeline_class: ClassVar[Any] = df.LTXPipeline
    lora_targets = ("to_q", "to_k", "to_v", "to_out.0", "ff.net.0.proj", "ff.net.2")
    frame_step = 8
    default_size = (161, 512, 704)
    tiny_size = (9, 32, 32)
    tiny_options: ClassVar[Mapping[str, Any]] = {"text_tokens": 24}
    encoder_sizes: ClassVar[dict[str, Mapping[str, Any]]] = {"text_encoder": tiny.T5_XXL}

    frame_rate: float

    def __init__(
        self,
        pipe: Any,
        *,
        text_tokens: int = 128,
        frame_rate: float = 25.0,
        decode_timestep: float = 0.05,
        decode_noise_scale: float = 0.025,
        **settings: Any,
    ) -> None:
        self.text_tokens, self.frame_rate = text_tokens, frame_rate
        self.decode_timestep, self.decode_noise_scale = decode_timestep, decode_noise_scale
        super().__init__(pipe, **settings)

    def share_sequence(self, sp: SequenceParallel) -> None:
        """Prepare the network for processes that share a video. Every process has all tokens of the text.

        Diffusers' own plan would cut the text too, which the masked cross-attention does not allow. Otherwise that plan
        is used.
        """
        network = self.pipe.transformer
        check_sharing(sp.size, network.config.num_attention_heads, self.latent_shape(Prompt(""))[0])
        stock = network._cp_plan
        tokens = {"hidden_states": stock[""]["hidden_states"]}
        if self.needs_image:  # each token has its own noise level
            tokens["timestep"] = cut(dim=1, of=2)
        attentions = (block.attn1 for block in network.transformer_blocks)
        share_by_plan(network, attentions, sp, stock | {"": tokens})

    def own_guidance(self) -> float:
        return 3.0

    def pixel_step(self) -> int:
        return int(self.pipe.vae_spatial_compression_ratio * self.pipe.transformer_spatial_patch_size)

    @property
    def grid(self) -> tuple[int, int, int]:
        """The numbers of latent frames, rows and columns of a video."""
        p = self.pipe
        frames = (self.frames - 1) // p.vae_temporal_compression_ratio + 1
        space = p.vae_spatial_compression_ratio
        return frames, self.height // space, self.width // space

    @property
    def frame_tokens(self) -> int:
        _, rows, columns = self.grid
        return int(rows * columns // self.pipe.transformer_spatial_patch_size**2)

    def latent_shape(self, prompt: Prompt) -> tuple[int, ...]:
        p = self.pipe
        frames = self.grid[0] // p.transformer_temporal_patch_size
        return (frames * self.frame_tokens, p.transformer.config.in_channels)

    def embed_text(self, text: str) -> dict[str, Tensor]:
        embedding, mask, _, _ = self.pipe.encode_prompt(
            [text], do_classifier_free_guidance=False, max_sequence_length=self.text_tokens, device=self.device
        )
        return {"text": embedding.to(self.dtype), "text_mask": mask}

    def text_shapes(self) -> dict[str, tuple[int, ...]]:
        width = self.pipe.transformer.config.caption_channels
        return {"text": (self.text_tokens, width), "text_mask": (self.text_tokens,)}

    def _encoding_settings(self) -> str:
        return f"{super()._encoding_settings()} {self.text_tokens}"

    def predict(self, x: Tensor, sigma: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        p, (frames, rows, columns) = self.pipe, self.grid
        space = p.vae_spatial_compression_ratio
        out: Tensor = p.transformer(
            hidden_states=self.model_input(x, inputs).to(self.dtype),
            encoder_hidden_states=inputs["text"],
            timestep=self.times(x, sigma),
            encoder_attention_mask=inputs["text_mask"],
            num_frames=frames,
            height=rows,
            width=columns,
            rope_interpolation_scale=(p.vae_temporal_compression_ratio / self.frame_rate, space, space),
            return_dict=False,
        )[0]
        return out

    def times(self, x: Tensor, sigma: Tensor) -> Tensor:
        return self.timestep(sigma)

    def unpacked(self, tokens: Tensor) -> Tensor:
        """Convert tokens (B, tokens, channels) into the denormalised latents (B, C, F, H, W) that the decoder takes."""
        p, vae = self.pipe, self.pipe.vae
        patches = (p.transformer_spatial_patch_size, p.transformer_temporal_patch_size)
        latents = p._unpack_latents(tokens, *self.grid, *patches)
        out: Tensor = p._denormalize_latents(latents, vae.latents_mean, vae.latents_std, vae.config.scaling_factor)
        return out

    def to_pixels(self, x0: Tensor) -> Tensor:
        vae, latents = self.pipe.vae, self.unpacked(x0)
        if vae.config.timestep_conditioning:
            return torch.cat([self._denoised(one) for one in torch.split(latents, 1)])
        out: Tensor = vae.decode(latents, None, return_dict=False)[0]
        return out

    def _denoised(self, latents: Tensor) -> Tensor:
        """Decode latents with the decoder of LTX-Video 0.9.1 and later, which does a last denoising step of its own.

        The noise for this step is the same for all videos.
        """
        device, scale = latents.device, self.decode_noise_scale
        noise = torch.randn(latents.shape, generator=torch.Generator(device).manual_seed(0), device=device)
        time = torch.tensor([self.decode_timestep], device=device, dtype=latents.dtype)
        with torch.random.fork_rng([] if device.index is None else [device], device_type=device.type):
            torch.manual_seed(0)  # layers of it may draw more
            mixed = (1 - scale) * latents + scale * noise.to(latents.dtype)
            out: Tensor = self.pipe.vae.decode(mixed, time, return_dict=False)[0]
        return out

    @classmethod
    def tiny(cls) -> Any:
        def make() -> Any:
            tokenizer = tiny.unigram_tokenizer(128)
            vae = df.AutoencoderKLLTXVideo(
                latent_channels=8,
                block_out_channels=(8, 8, 8, 8),
                decoder_block_out_channels=(8, 8, 8, 8),
                layers_per_block=(1, 1, 1, 1, 1),
                decoder_layers_per_block=(1, 1, 1, 1, 1),
                patch_size=1,
                spatio_temporal_scaling=(True, True, True, False),
                decoder_spatio_temporal_scaling=(True, True, True, False),
            )
            transformer = df.LTXVideoTransformer3DModel(
                in_channels=8,
                out_channels=8,
                num_attention_heads=2,
                attention_head_dim=16,
                cross_attention_dim=32,
                num_layers=2,
                caption_channels=16,
            )
            scheduler = df.FlowMatchEulerDiscreteScheduler(
                use_dynamic_shifting=True,
                base_shift=0.95,
                max_shift=2.05,
                base_image_seq_len=1024,
                max_image_seq_len=4096,
                shift_terminal=0.1,
            )
            encoder = tiny.t5_encoder(16, len(tokenizer))
            return cls.pipeline_class(scheduler, vae, encoder, tokenizer, transformer)

        return tiny.seeded(make)


class GivenFirstFrame(DiffusersModel):
    """An image-to-video model whose first latent frame is given.

    The tokens of the given frame come first, have noise level 0 and are not denoised.
    """

    needs_image = True
    frame_tokens: int

    def embed_image(self, image: Image.Image) -> dict[str, Tensor]:
        p, vae = self.pipe, self.pipe.vae
        pixels = p.video_processor.preprocess(image, height=self.height, width=self.width)
        latents = vae.encode(pixels.to(self.device, vae.dtype)[:, :, None]).latent_dist.mode()
        latents = p._normalize_latents(latents.float(), vae.latents_mean, vae.latents_std)
        patches = (p.transformer_spatial_patch_size, p.transformer_temporal_patch_size)
        return {"first_frame": p._pack_latents(latents, *patches)}

    def image_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"first_frame": (self.frame_tokens, self.pipe.transformer.config.in_channels)}

    def model_input(self, x: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        given = inputs["first_frame"].flatten(1)
        return torch.cat([given.to(x.dtype), x.flatten(1)[:, given.shape[1] :]], dim=1).view_as(x)

    def times(self, x: Tensor, sigma: Tensor) -> Tensor:
        noisy = torch.ones_like(x[..., 0])
        noisy[:, : self.frame_tokens] = 0
        return self.timestep(sigma)[:, None] * noisy

    def velocity(self, x: Tensor, sigma: Tensor, condition: Mapping[str, Tensor]) -> Tensor:
        """Return the velocity, shaped like `x`.

        At the given first frame the velocity leads straight to that frame's latents, so the final latents contain them.
        """
        v, given = super().velocity(x, sigma, condition), condition["first_frame"].flatten(1)
        count = given.shape[1]
        straight = (x.flatten(1)[:, :count] - given) / sigma[:, None]
        return torch.cat([straight.to(v.dtype), v.flatten(1)[:, count:]], dim=1).view_as(v)


@model("ltx-i2v", extra="models")
class LTXVideoImageToVideo(GivenFirstFrame, LTXVideo):
    pipeline_class = df.LTXImageToVideoPipeline
