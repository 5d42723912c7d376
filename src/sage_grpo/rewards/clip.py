"""How well frames match the prompt by CLIP's embeddings: CLIPScore and PickScore.

CLIP reads words in a frame and ignores time. Both scores are gamed by writing the prompt into the frame, and by a still
of the right subject.
"""

import tempfile
from pathlib import Path
from typing import Any, Self

import torch
from tokenizers import pre_tokenizers
from torch import Tensor
from transformers import CLIPConfig, CLIPModel, CLIPTokenizer

from sage_grpo.config import ConfigError
from sage_grpo.core.protocols import Prompt
from sage_grpo.registry import reward
from sage_grpo.rewards.checkpoints import not_loaded
from sage_grpo.rewards.frames import VideoScorer, bounded, frame_numbers

try:  # the class that needs no torchvision, by its newer name
    from transformers import CLIPImageProcessorPil as ImageProcessor
except ImportError:
    from transformers import CLIPImageProcessor as ImageProcessor


@reward("clip", extra="models")
class CLIPReward(VideoScorer):
    """CLIPScore: `scale` times the cosine of text and frame embeddings, averaged over a few frames."""

    names: tuple[str, ...] = ("clip",)
    device_bytes = 1_710_000_000  # of its weights: what a plan counts
    follows_videos_device = True
    default_path = default_processor = "openai/clip-vit-large-patch14"

    def __init__(
        self,
        path: str | None = None,
        *,
        processor: str | None = None,
        revision: str | None = None,
        frames: int = 4,
        scale: float = 1.0,
        device: str | None = None,
    ) -> None:
        """Load a CLIP checkpoint.

        Args:
            path: Folder or hub name of the checkpoint.
            processor: Folder or hub name of the tokenizer and image processor, if they are not at `path`.
            revision: Branch or commit on the hub.
            frames: How many frames of a video are scored.
            scale: Factor of the score; CLIPScore as first published has 2.5.
            device: Where to score, by default the device of the videos.
        """
        if frames < 1:
            raise ConfigError(f"{self.names[0]}: frames={frames}; at least one is needed")
        if not scale > 0:
            raise ConfigError(
                f"{self.names[0]}: scale={scale} must be above 0; use 1, or 2.5 as CLIPScore was published"
            )
        source, chosen = path or self.default_path, processor or path or self.default_processor
        at, theirs = revision or "main", (revision if chosen == source else None) or "main"
        try:
            # Pickled weights would run code of whoever made them.
            self.model, info = self._load(source, revision=at, use_safetensors=True, output_loading_info=True)
            self.tokenizer: Any = CLIPTokenizer.from_pretrained(chosen, revision=theirs)
            self.processor: Any = ImageProcessor.from_pretrained(chosen, revision=theirs)
        except OSError as error:
            needs = "a CLIP checkpoint with safetensors, a tokenizer and an image processor"
            raise not_loaded(self.names[0], source, needs, error) from error
        if missing := sorted(info["missing_keys"]):  # they would be random, and so would the scores
            raise ConfigError(f"{self.names[0]}: {source} is not a whole CLIP: it has no {missing[0]}")
        self.model.eval().requires_grad_(False)
        self.scale, self.frames, self.device = scale, frames, torch.device(device) if device else None
        self.text_tokens: int = self.model.config.text_config.max_position_embeddings

    @staticmethod
    def _load(source: str, **how: Any) -> tuple[Any, Any]:
        return CLIPModel.from_pretrained(source, **how)  # type: ignore[no-any-return]

    def frame_indices(self, frames: int) -> list[int]:
        return frame_numbers(frames, self.frames)

    @torch.no_grad()
    def score_video(self, frames: Tensor, prompt: Prompt) -> list[float]:
        self.model.to(self.device or frames.device)
        return [float(self.cosines(frames[self.frame_indices(len(frames))], bounded(prompt.text)).mean())]

    def cosines(self, pictures: Tensor, text: str) -> Tensor:
        """Return `scale` times the cosine between a text and each picture (N, H, W, 3), as (N,)."""
        tokens = self.tokenizer(text, truncation=True, max_length=self.text_tokens, return_tensors="pt")
        pixels = self.processor(list(pictures.cpu().numpy()), return_tensors="pt", input_data_format="channels_last")
        device = self.model.device
        of_text = self.model.get_text_features(**tokens.to(device)).pooler_output.double()
        of_pictures = self.model.get_image_features(**pixels.to(device)).pooler_output.double()
        return self.scale * torch.cosine_similarity(of_pictures, of_text)

    @classmethod
    def tiny(cls) -> Self:
        with tempfile.TemporaryDirectory() as folder:
            make_tiny_checkpoint(folder)
            return cls(folder, frames=2)


@reward("pickscore", extra="models")
class PickScoreReward(CLIPReward):
    """PickScore: exp(logit_scale) · cosine by a CLIP that was trained on people's preferences, divided by `divisor`."""

    names = ("pickscore",)
    device_bytes = 3_940_000_000
    default_path, default_processor = "yuvalkirstain/PickScore_v1", "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"

    def __init__(self, path: str | None = None, *, divisor: float = 1.0, **settings: Any) -> None:
        if not divisor > 0:
            raise ConfigError(f"pickscore: divisor={divisor} must be above 0; use 1, or 26 as Flow-GRPO does")
        super().__init__(path, **settings)
        self.divisor = divisor

    def cosines(self, pictures: Tensor, text: str) -> Tensor:
        scale: Tensor = self.model.logit_scale.double().exp()
        return scale * super().cosines(pictures, text) / self.divisor


def make_tiny_checkpoint(folder: str | Path) -> None:
    """Write a checkpoint of CLIP's own classes at toy size.

    It has one token per byte of text, two layers, and pictures of 32 pixels a side.
    """
    special = ["<|startoftext|>", "<|endoftext|>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {word: i for i, word in enumerate([*special, *letters, *(f"{letter}</w>" for letter in letters)])}
    layers = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = layers | {"vocab_size": len(vocabulary), "max_position_embeddings": 24, "bos_token_id": 0, "eos_token_id": 1}
    vision = layers | {"image_size": 32, "patch_size": 8}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: Any = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=16))
    model.save_pretrained(folder)
    CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=24).save_pretrained(folder)
    ImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}).save_pretrained(folder)
