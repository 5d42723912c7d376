"""Adapters of HunyuanVideo-1.5 for text- and image-to-video.

The model has two text encoders and extra input channels for a first frame. Guidance is computed by the pipeline's own
guider.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import diffusers as df
import torch
import transformers as hf
from PIL import Image
from torch import Tensor, nn

from sage_grpo.core.comm import SequenceParallel
from sage_grpo.core.protocols import Prompt
from sage_grpo.models import hunyuan15_transformer, tiny
from sage_grpo.models.base import JOINT_ATTENTION, ModelError
from sage_grpo.models.context_parallel import JointAttention, check_sharing
from sage_grpo.models.ragged_text import COUNT, OwnLengths
from sage_grpo.registry import model


@model("hunyuan15", extra="models")
class HunyuanVideo15(OwnLengths):
    pipeline_class: ClassVar[Any] = df.HunyuanVideo15Pipeline
    encoders = ("text_encoder", "text_encoder_2", "image_encoder")
    lora_targets = (
        *JOINT_ATTENTION,
        "ff.net.0.proj",
        "ff.net.2",
        "ff_context.net.0.proj",
        "ff_context.net.2",
    )
    frame_step = 4
    frame_rate = 24.0
    typical_text = 300  # tokens that a plan counts for a prompt
    default_size = (121, 480, 848)
    tiny_size = (5, 32, 32)
    tiny_options: ClassVar[Mapping[str, Any]] = {"text_tokens": 24, "glyph_tokens": 16, "image_tokens": 4}
    encoder_sizes: ClassVar[dict[str, Mapping[str, Any]]] = {
        "text_encoder": tiny.QWEN25_7B,
        "text_encoder_2": {
            "d_model": 1472,
            "d_ff": 3584,
            "d_kv": 64,
            "num_heads": 6,
            "num_layers": 12,
            "vocab_size": 1510,
            "feed_forward_proj": "gated-gelu",
        },
        "image_encoder": {
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "image_size": 384,
            "patch_size": 14,
        },
    }

    def __init__(
        self, pipe: Any, *, text_tokens: int = 1000, glyph_tokens: int = 256, image_tokens: int = 729, **settings: Any
    ) -> None:
        pipe.tokenizer_max_length, pipe.tokenizer_2_max_length = text_tokens, glyph_tokens
        pipe.vision_num_semantic_tokens = image_tokens
        super().__init__(pipe, **settings)
        if pipe.transformer.config.use_meanflow:
            raise ModelError("this checkpoint is distilled to few steps (use_meanflow); train the undistilled one")
        last = len(self.shard_blocks) - 1  # nobody reads the text stream after the last block
        self.unused = (rf"transformer_blocks\.{last}\.(attn\.to_add_out|ff_context)",)
        self.unused += () if self.needs_image else (r"^image_embedder\.",)
        guider = pipe.guider
        if not isinstance(guider, df.ClassifierFreeGuidance) or (guider._start, guider._stop) != (0.0, 1.0):
            raise ModelError(
                f"the checkpoint's guider is {type(guider).__name__}; training needs ClassifierFreeGuidance over all "
                "steps: set `guider` in model_index.json, start 0.0 and stop 1.0"
            )
        pipe.guider = guider.new(guidance_scale=self.guidance_scale)
        self._attend(JointAttention())
        hunyuan15_transformer.install(pipe.transformer)

    def _attend(self, processor: JointAttention) -> None:
        for block in self.pipe.transformer.transformer_blocks:
            processor._attention_backend = block.attn.processor._attention_backend
            block.attn.processor = processor

    def share_sequence(self, sp: SequenceParallel) -> None:
        """Prepare the network for processes that share a video.

        The video's tokens are cut before the first block and gathered after the last. Every process has all tokens of
        the text.
        """
        if sp.ring > 1:
            raise ModelError("parallel.ring: HunyuanVideo-1.5 trades heads only; use parallel.ring=1")
        network = self.pipe.transformer
        check_sharing(sp.size, network.config.num_attention_heads)
        network.rope.register_forward_hook(lambda module, inputs, out: tuple(sp.shard(x, 0) for x in out))

        def cut_video(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            return sp.shard(inputs[0], 1), *inputs[1:]

        self.shard_blocks[0].register_forward_pre_hook(cut_video)
        network.proj_out.register_forward_hook(lambda module, inputs, out: sp.all_gather(out, 1))
        self._attend(JointAttention(sp))

    def own_guidance(self) -> float:
        return float(self.pipe.guider.guidance_scale) if self.pipe.guider._enabled else 1.0

    def own_size(self) -> tuple[int, int, int]:
        """Return the default frames, height and width.

        Height and width follow from the transformer's `target_size`, which differs between 480p and 720p checkpoints.
        """
        p = self.pipe
        height, width = p.video_processor.calculate_default_height_width(9, 16, p.target_size)
        return self.default_size[0], height, width

    def pixel_step(self) -> int:
        return int(self.pipe.vae_scale_factor_spatial)

    def latent_shape(self, prompt: Prompt) -> tuple[int, ...]:
        p, space = self.pipe, self.pipe.vae_scale_factor_spatial
        frames = (self.frames - 1) // p.vae_scale_factor_temporal + 1
        return (p.num_channels_latents, frames, self.height // space, self.width // space)

    def embed_text(self, text: str) -> dict[str, Tensor]:
        """Return two unpadded embeddings (1, tokens, width): `text` of the prompt, `glyphs` of words to be written.

        If the prompt asks for no written words, `glyphs` has no tokens.
        """
        words, there, glyphs, written = self.pipe.encode_prompt([text], device=self.device, dtype=self.dtype)
        return {"text": words[:, there[0].bool()], "glyphs": glyphs[:, written[0].bool()]}

    def text_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the embeddings of a text of typical length, without the batch axis.

        A text can have up to `text_tokens` tokens, and up to `glyph_tokens` for the words to be written.
        """
        config = self.pipe.transformer.config
        text = min(self.typical_text, self.pipe.tokenizer_max_length)
        return {"text": (text, config.text_embed_dim), "glyphs": (0, config.text_embed_2_dim)}

    @property
    def encoded_tokens(self) -> int:
        return int(self.pipe.tokenizer_max_length)

    def _encoding_settings(self) -> str:
        p, own = self.pipe, f"{super()._encoding_settings()} without padding"
        return f"{own} {p.tokenizer_max_length} {p.tokenizer_2_max_length} {p.system_message}"

    def first_frame(self, x: Tensor, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return latents (B, C, F, H, W) that hold the given first frame, and a mask (B, 1, F, H, W) that is 1 there.

        Both are zeros in text-to-video.
        """
        return torch.zeros_like(x), torch.zeros_like(x[:, :1])

    def predict(self, x: Tensor, sigma: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        x = x.to(self.dtype)
        channels = torch.cat([x, *self.first_frame(x, inputs)], dim=1)
        # counts as plain numbers: FSDP2 moves all tensors that a network is given to the device
        words = {name: y.tolist() if name.endswith(COUNT) else y for name, y in inputs.items()}
        out: Tensor = self.pipe.transformer(channels, self.timestep(sigma), words=words)
        return out

    def guide(self, positive: Tensor, negative: Tensor, sigma: Tensor) -> Tensor:
        if self.pipe.guider.guidance_scale != self.guidance_scale:
            self.pipe.guider = self.pipe.guider.new(guidance_scale=self.guidance_scale)
        out: Tensor = self.pipe.guider.forward(positive, negative).pred  # its own formulation and rescaling
        return out

    def to_pixels(self, x0: Tensor) -> Tensor:
        out: Tensor = self.pipe.vae.decode(x0 / self.pipe.vae.config.scaling_factor, return_dict=False)[0]
        return out

    @classmethod
    def tiny(cls) -> Any:
        def make() -> Any:
            tokenizer, glyphs = tiny.qwen_tokenizer(header=108), hf.ByT5Tokenizer()
            parts = {
                "text_encoder": tiny.qwen_encoder(16, len(tokenizer)),
                "tokenizer": tokenizer,
                "transformer": df.HunyuanVideo15Transformer3DModel(
                    in_channels=9,
                    out_channels=4,
                    num_attention_heads=2,
                    attention_head_dim=16,
                    num_layers=2,
                    num_refiner_layers=1,
                    mlp_ratio=2.0,
                    text_embed_dim=16,
                    text_embed_2_dim=16,
                    image_embed_dim=16,
                    rope_axes_dim=(4, 6, 6),
                    target_size=32,
                    task_type="i2v" if cls.needs_image else "t2v",
                ),
                "vae": df.AutoencoderKLHunyuanVideo15(
                    latent_channels=4, block_out_channels=(16, 16, 16, 16, 16), layers_per_block=1
                ),
                "scheduler": df.FlowMatchEulerDiscreteScheduler(shift=5.0),
                "text_encoder_2": tiny.t5_encoder(16, len(glyphs)),
                "tokenizer_2": glyphs,
                "guider": df.ClassifierFreeGuidance(guidance_scale=6.0),
            }
            return cls.pipeline_class(**parts, **cls.tiny_image_parts())

        return tiny.seeded(make)

    @classmethod
    def tiny_image_parts(cls) -> dict[str, Any]:
        return {}


@model("hunyuan15-i2v", extra="models")
class HunyuanVideo15ImageToVideo(HunyuanVideo15):
    pipeline_class = df.HunyuanVideo15ImageToVideoPipeline
    needs_image = True

    def embed_image(self, image: Image.Image) -> dict[str, Tensor]:
        p = self.pipe
        image = p.video_processor.resize(image, height=self.height, width=self.width, resize_mode="crop")
        latents = p._get_image_latents(p.vae, p.video_processor, image, self.height, self.width, self.device)
        tokens = p.encode_image(image, batch_size=1, device=self.device, dtype=self.dtype)
        return {"image": tokens, "first_frame": latents.to(self.dtype)}

    def image_shapes(self) -> dict[str, tuple[int, ...]]:
        image = (self.pipe.vision_num_semantic_tokens, self.pipe.vision_states_dim)
        channels, _, *size = self.latent_shape(Prompt(""))
        return {"image": image, "first_frame": (channels, 1, *size)}

    def first_frame(self, x: Tensor, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        latents, mask = torch.zeros_like(x), torch.zeros_like(x[:, :1])
        latents[:, :, :1], mask[:, :, :1] = inputs["first_frame"], 1.0
        return latents, mask

    @classmethod
    def tiny_image_parts(cls) -> dict[str, Any]:
        processor = hf.SiglipImageProcessorPil(size={"height": 32, "width": 32})
        return {"image_encoder": tiny.vision_encoder("Siglip"), "feature_extractor": processor}
