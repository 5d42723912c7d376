"""Adapters of LTX-2, whose transformer denoises video and sound together. The tokens of both form one row of latents.

Guidance is classifier-free only, with one scale for video and one for sound. The pipeline's further guidance by default
(spatio-temporal, modality, rescaling) costs up to two more passes per step. Training and sampling leave it out.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import diffusers as df
import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.transformers.transformer_ltx2 import apply_interleaved_rotary_emb, apply_split_rotary_emb
from diffusers.pipelines.ltx2 import LTX2TextConnectors, LTX2Vocoder
from torch import Tensor

from sage_grpo.core.comm import SequenceParallel
from sage_grpo.core.latents import LatentParts
from sage_grpo.core.protocols import Prompt, Videos
from sage_grpo.models import tiny
from sage_grpo.models.context_parallel import check_sharing, cut, share_by_plan
from sage_grpo.models.errors import ModelError
from sage_grpo.models.ltx import GivenFirstFrame, LTXVideo
from sage_grpo.registry import model

VIDEO, SOUND = "video", "sound"
RATIOS = {"spatial_compression_ratio": 32, "temporal_compression_ratio": 8}  # its class guesses others


@model("ltx2", extra="models")
class LTX2(LTXVideo):
    pipeline_class: ClassVar[Any] = df.LTX2Pipeline
    encoders = ("text_encoder", "connectors")
    decoders = ("vae", "audio_vae", "vocoder")
    default_size = (121, 512, 768)
    tiny_size = (9, 64, 64)
    tiny_options: ClassVar[Mapping[str, Any]] = {"text_tokens": 24}
    encoder_sizes: ClassVar[dict[str, Mapping[str, Any]]] = {"text_encoder": tiny.GEMMA3_12B, "vae": RATIOS}

    def __init__(
        self,
        pipe: Any,
        *,
        text_tokens: int = 1024,
        frame_rate: float = 24.0,
        sound_guidance_scale: float | None = None,
        **settings: Any,
    ) -> None:
        self._sound_scale = sound_guidance_scale
        super().__init__(pipe, text_tokens=text_tokens, frame_rate=frame_rate, **settings)
        if pipe.vae.config.timestep_conditioning:
            raise ModelError("this LTX-2 decoder denoises by itself (timestep_conditioning), which no release does")

    # Two guided parts --------------------------------------------------------------------------------------

    @property
    def sound_guidance_scale(self) -> float:
        """The guidance scale of the sound: the option of this name, or the scale of the video if the option is None."""
        return self.guidance_scale if self._sound_scale is None else self._sound_scale

    @property
    def guided(self) -> bool:
        return self.guidance_scale != 1.0 or self.sound_guidance_scale != 1.0

    def guide(self, positive: Tensor, negative: Tensor, sigma: Tensor) -> Tensor:
        scales = {VIDEO: self.guidance_scale, SOUND: self.sound_guidance_scale}
        to, away = self.parts.unpack(positive), self.parts.unpack(negative)
        return self.parts.pack({name: away[name] + scale * (to[name] - away[name]) for name, scale in scales.items()})

    # Latents -----------------------------------------------------------------------------------------------

    @property
    def sound_frames(self) -> int:
        """The number of latent frames of the sound, which lasts as long as the video."""
        p = self.pipe
        a_second = p.audio_sampling_rate / p.audio_hop_length / p.audio_vae_temporal_compression_ratio
        return round(self.frames / self.frame_rate * float(a_second))

    @property
    def sound_pitches(self) -> int:
        return int(self.pipe.audio_vae.config.mel_bins // self.pipe.audio_vae_mel_compression_ratio)

    @property
    def parts(self) -> LatentParts:
        p = self.pipe
        tokens = self.grid[0] // p.transformer_temporal_patch_size * self.frame_tokens
        channels = p.audio_vae.config.latent_channels * self.sound_pitches
        return LatentParts({VIDEO: (tokens, p.transformer.config.in_channels), SOUND: (self.sound_frames, channels)})

    def latent_shape(self, prompt: Prompt) -> tuple[int, ...]:
        return self.parts.shape

    # Text --------------------------------------------------------------------------------------------------

    def embed_text(self, text: str) -> dict[str, Tensor]:
        """Return the text's embeddings after the connectors: `text` for video, `sound_text` for sound, and their mask.

        The connectors are networks between text encoder and transformer. They are not trained.
        """
        p = self.pipe
        embedding, mask, _, _ = p.encode_prompt(
            [text], do_classifier_free_guidance=False, max_sequence_length=self.text_tokens, device=self.device
        )
        pictures, sounds, mask = p.connectors(embedding, mask, padding_side=p.tokenizer.padding_side)
        return {"text": pictures.to(self.dtype), "sound_text": sounds.to(self.dtype), "text_mask": mask}

    def text_shapes(self) -> dict[str, tuple[int, ...]]:
        connectors, tokens = self.pipe.connectors, self.text_tokens
        pictures, sounds = (part.inner_dim for part in (connectors.video_connector, connectors.audio_connector))
        return {"text": (tokens, pictures), "sound_text": (tokens, sounds), "text_mask": (tokens,)}

    # The network -------------------------------------------------------------------------------------------

    def predict(self, x: Tensor, sigma: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        (frames, rows, columns), time = self.grid, self.timestep(sigma)
        given = self.parts.unpack(self.model_input(x, inputs).to(self.dtype))
        video, sound = self.pipe.transformer(
            hidden_states=given[VIDEO],
            audio_hidden_states=given[SOUND],
            encoder_hidden_states=inputs["text"],
            audio_encoder_hidden_states=inputs["sound_text"],
            timestep=self.times(given[VIDEO], sigma),
            audio_timestep=time,
            sigma=time,
            encoder_attention_mask=inputs["text_mask"],
            audio_encoder_attention_mask=inputs["text_mask"],
            num_frames=frames,
            height=rows,
            width=columns,
            fps=self.frame_rate,
            audio_num_frames=self.sound_frames,
            use_cross_timestep=True,  # as the pipeline does
            return_dict=False,
        )
        return self.parts.pack({VIDEO: video, SOUND: sound})

    def share_sequence(self, sp: SequenceParallel) -> None:
        """Prepare the network for processes that share a video, each with a part of the video's tokens.

        Sound has few tokens, so every process has all of them. Where sound attends to the video, the video's keys and
        values are gathered.
        """
        network = self.pipe.transformer
        check_sharing(sp.size, network.config.num_attention_heads, self.parts.shapes[VIDEO][0])
        stock = network._cp_plan
        tokens = {"hidden_states": stock[""]["hidden_states"]}
        if self.needs_image:  # each token has its own noise level
            tokens["timestep"] = cut(dim=1, of=2)
        whole_rows = {"split": {"dim": 2, "of": 4}, "interleaved": {"dim": 1, "of": 3}}[network.config.rope_type]
        places = {i: cut(**whole_rows, output=True) for i in (0, 1)}
        plan = stock | {"": tokens, "rope": places, "cross_attn_rope": places}
        share_by_plan(network, (block.attn1 for block in network.transformer_blocks), sp, plan)
        for block in network.transformer_blocks:
            block.video_to_audio_attn.set_processor(LookAtWholeVideo(sp))

    # Results -----------------------------------------------------------------------------------------------

    def to_pixels(self, x0: Tensor) -> Tensor:
        return super().to_pixels(self.parts.unpack(x0)[VIDEO])

    @torch.no_grad()
    def to_sound(self, x0: Tensor) -> Tensor:
        """Decode the sound in latents (B, N) to waveforms (B, channels, samples) from -1 to 1."""
        p, vae = self.pipe, self.pipe.audio_vae
        with self.on_device("audio_vae", "vocoder"):
            latents = p._denormalize_audio_latents(self.parts.unpack(x0)[SOUND], vae.latents_mean, vae.latents_std)
            latents = p._unpack_audio_latents(latents, self.sound_frames, num_mel_bins=self.sound_pitches)
            sound: Tensor = p.vocoder(vae.decode(latents.to(vae.dtype), return_dict=False)[0])
        return sound.float().clamp(-1, 1)

    def render(self, x0: Tensor) -> Videos:
        return Videos(
            self.decode(x0), self.frame_rate, self.to_sound(x0), self.pipe.vocoder.config.output_sampling_rate
        )

    # For the contract --------------------------------------------------------------------------------------

    def pipeline_inputs(self, x: Tensor, inputs: Mapping[str, Tensor]) -> dict[str, Any]:
        p, given = self.pipe, self.parts.unpack(self.model_input(x, inputs))
        vae = p.audio_vae
        return {
            "latents": self.unpacked(given[VIDEO]),
            "audio_latents": p._denormalize_audio_latents(given[SOUND], vae.latents_mean, vae.latents_std),
            "frame_rate": self.frame_rate,
            "audio_guidance_scale": self.sound_guidance_scale,
            "stg_scale": 0.0,
            "audio_stg_scale": 0.0,
            "modality_scale": 1.0,
            "audio_modality_scale": 1.0,
            "guidance_rescale": 0.0,
            "audio_guidance_rescale": 0.0,
        }

    def pipeline_latents(self, found: tuple[Any, ...]) -> Tensor:
        p, (video, sound) = self.pipe, found
        vae = p.vae
        video = p._normalize_latents(video, vae.latents_mean, vae.latents_std, vae.config.scaling_factor)
        sound = p._pack_audio_latents(sound)
        return self.parts.pack(
            {
                VIDEO: p._pack_latents(video, p.transformer_spatial_patch_size, p.transformer_temporal_patch_size),
                SOUND: p._normalize_audio_latents(sound, p.audio_vae.latents_mean, p.audio_vae.latents_std),
            }
        )

    @classmethod
    def tiny(cls) -> Any:
        def make() -> Any:
            tokenizer = tiny.gemma_tokenizer(128)
            encoder = tiny.gemma_encoder(16, len(tokenizer))
            heads = {"attention_heads": 2, "attention_head_dim": 8, "layers": 1, "learnable_registers": 8}
            connectors = LTX2TextConnectors(
                caption_channels=16,
                text_proj_in_factor=encoder.config.text_config.num_hidden_layers + 1,
                **{
                    f"{part}_connector_{'' if name == 'attention_head_dim' else 'num_'}{name}": value
                    for part in ("video", "audio")
                    for name, value in heads.items()
                },
                rope_type="split",
            )
            transformer = df.LTX2VideoTransformer3DModel(
                in_channels=8,
                out_channels=8,
                num_attention_heads=2,
                attention_head_dim=16,
                cross_attention_dim=32,
                audio_in_channels=4,
                audio_out_channels=4,
                audio_num_attention_heads=2,
                audio_attention_head_dim=8,
                audio_cross_attention_dim=16,
                num_layers=2,
                caption_channels=16,
                rope_type="split",
            )
            vae = df.AutoencoderKLLTX2Video(
                latent_channels=8,
                block_out_channels=(8, 8, 8, 8),
                decoder_block_out_channels=(8, 16, 32),
                layers_per_block=(1, 1, 1, 1, 1),
                decoder_layers_per_block=(1, 1, 1, 1),
                **RATIOS,
            )
            audio_vae = df.AutoencoderKLLTX2Audio(
                base_channels=4, ch_mult=(1, 1, 1), num_res_blocks=1, resolution=32, latent_channels=2, mel_bins=8
            )
            vocoder = LTX2Vocoder(
                in_channels=2 * 8,
                hidden_channels=16,
                upsample_kernel_sizes=[4, 4],
                upsample_factors=[2, 2],
                resnet_kernel_sizes=[3],
                resnet_dilations=[[1, 3, 5]],
                output_sampling_rate=400,
            )
            return cls.pipeline_class(
                scheduler=df.FlowMatchEulerDiscreteScheduler(),
                vae=vae,
                audio_vae=audio_vae,
                text_encoder=encoder,
                tokenizer=tokenizer,
                connectors=connectors,
                transformer=transformer,
                vocoder=vocoder,
            )

        return tiny.seeded(make)


class LookAtWholeVideo:
    """A diffusers attention processor for attention from the sound to the video, in processes that share the video.

    Every process has all of the sound, and gathers the video's keys and values from all processes.
    """

    _attention_backend: Any = None
    _parallel_config: Any = None

    def __init__(self, sp: SequenceParallel) -> None:
        self.sp = sp

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        attention_mask: Tensor | None,
        query_rotary_emb: tuple[Tensor, Tensor],
        key_rotary_emb: tuple[Tensor, Tensor],
    ) -> Tensor:
        rotate = apply_split_rotary_emb if attn.rope_type == "split" else apply_interleaved_rotary_emb
        query = rotate(attn.norm_q(attn.to_q(hidden_states)), query_rotary_emb)
        key = rotate(attn.norm_k(attn.to_k(encoder_hidden_states)), key_rotary_emb)
        key, value = (self.sp.gather_equal(x, 1) for x in (key, attn.to_v(encoder_hidden_states)))
        heads = (x.unflatten(2, (attn.heads, -1)) for x in (query, key, value))
        out = dispatch_attention_fn(*heads, attn_mask=attention_mask, backend=self._attention_backend)
        if attn.to_gate_logits is not None:
            out = out * 2.0 * torch.sigmoid(attn.to_gate_logits(hidden_states)).unsqueeze(-1)
        project, dropout = attn.to_out
        result: Tensor = dropout(project(out.flatten(2).to(query.dtype)))
        return result


@model("ltx2-i2v", extra="models")
class LTX2ImageToVideo(GivenFirstFrame, LTX2):
    pipeline_class = df.LTX2ImageToVideoPipeline
