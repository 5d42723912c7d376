"""Does the video sound like what the prompt asks for? The cosine of CLAP's embeddings of sound and text.

CLAP recognises what kind of sound there is, not when it comes. The score is gamed by one loop of the right sound, and
by a voice that reads the prompt. It ignores the frames: combine it with `synchrony` and a score of frames.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import torch
from tokenizers import pre_tokenizers
from torch import Tensor
from transformers import ClapConfig, ClapFeatureExtractor, ClapModel, ClapProcessor, RobertaTokenizer

from sage_grpo.config import ConfigError
from sage_grpo.core.protocols import Prompt
from sage_grpo.registry import reward
from sage_grpo.rewards.checkpoints import move, not_loaded
from sage_grpo.rewards.frames import bounded
from sage_grpo.rewards.sound import Clip, SoundScorer, window_starts

DEFAULT = "laion/larger_clap_general"
REVISION = (
    "16c8cc3159a3c8a31e8ff5ef1f66b0d9ab3667db"  # the branch `main` of DEFAULT has no safetensors, this commit has
)


@reward("clap", extra="models")
class CLAPReward(SoundScorer):
    """CLAPScore: the cosine of text and sound, from −1 to 1. A long sound is scored in windows, which are averaged."""

    names: tuple[str, ...] = ("clap",)
    device_bytes = 776_000_000  # of its weights: what a plan counts

    def __init__(
        self,
        path: str | None = None,
        *,
        revision: str | None = None,
        column: str = "sound",
        device: str | None = None,
    ) -> None:
        """Load a CLAP checkpoint.

        Args:
            path: Folder or hub name of the checkpoint; by default `DEFAULT`.
            revision: Branch or commit on the hub.
            column: Column of the prompt file that describes the sound; where it is empty, the prompt's text counts.
            device: Where to score, by default on the host.
        """
        source, at = path or DEFAULT, revision or ("main" if path else REVISION)
        try:
            # Pickled weights would run code of whoever made them.
            self.model, info = self._load(source, revision=at, use_safetensors=True, output_loading_info=True)
            processor: Any = ClapProcessor.from_pretrained(source, revision=at)
        except OSError as error:
            needs = "a CLAP checkpoint with safetensors, a tokenizer and a feature extractor"
            raise not_loaded("clap", source, needs, error) from error
        if missing := sorted(info["missing_keys"]):  # they would be random, and so would the scores
            raise ConfigError(f"clap: {source} is not a whole CLAP: it has no {missing[0]}")
        if self.model.config.audio_config.enable_fusion:
            raise ConfigError(f"clap: {source} listens to random parts of a sound (enable_fusion); use {DEFAULT}")
        self.tokenizer, self.extractor, self.column = processor.tokenizer, processor.feature_extractor, column
        text = self.model.config.text_config
        self.text_tokens: int = text.max_position_embeddings - text.pad_token_id - 1  # positions count from the padding
        move(self.model.eval().requires_grad_(False), device, "clap")

    @staticmethod
    def _load(source: str, **how: Any) -> tuple[Any, Any]:
        return ClapModel.from_pretrained(source, **how)  # type: ignore[no-any-return]

    def frame_indices(self, frames: int) -> list[int]:
        return [0]  # none, but a video without any would be masked

    def score_clip(self, clip: Clip, prompt: Prompt) -> list[float]:
        described = str(prompt.columns.get(self.column) or "").strip()
        return [float(self.cosines(clip.mono(self.extractor.sampling_rate), bounded(described or prompt.text)).mean())]

    def cosines(self, wave: Tensor, text: str) -> Tensor:
        """Return the cosines (windows,) of a text with each window of a sound (samples,) at the extractor's rate."""
        device = self.model.device
        tokens = self.tokenizer(text, truncation=True, max_length=self.text_tokens, return_tensors="pt")
        of_text = self.model.get_text_features(**tokens.to(device)).pooler_output.double()
        heard = [
            self.model.get_audio_features(mel.to(device)).pooler_output.double() for mel in self.spectrograms(wave)
        ]
        return torch.cosine_similarity(torch.cat(heard), of_text)

    def spectrograms(self, wave: Tensor) -> Iterator[Tensor]:
        """Yield the spectrogram of each window of a sound (samples,).

        The windows are as few as can cover all of the sound. Given a sound longer than a window, the extractor would
        cut out a random part, and the same video would have two scores.
        """
        length, rate = self.extractor.nb_max_samples, self.extractor.sampling_rate
        for start in window_starts(len(wave), length, -(-len(wave) // length)):
            part = wave[start : start + length].numpy()
            mel = self.extractor(part, truncation="rand_trunc", sampling_rate=rate, return_tensors="pt")
            yield mel["input_features"].float()

    @classmethod
    def tiny(cls) -> Self:
        with tempfile.TemporaryDirectory() as folder:
            make_tiny_checkpoint(folder)
            return cls(folder)


def make_tiny_checkpoint(folder: str | Path, **audio: Any) -> None:
    """Write a checkpoint of CLAP's own classes at toy size, with one token per byte of text and windows of one second.

    Args:
        audio: Settings of the audio network that differ from the toy's.
    """
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    words = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    text = {
        "vocab_size": len(words),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 40,
    }
    sizes = {
        "spec_size": 64,
        "num_mel_bins": 16,
        "window_size": 4,
        "patch_size": 2,
        "patch_stride": (2, 2),
        "patch_embeds_hidden_size": 16,
        "hidden_size": 32,
        "depths": (1, 1),
        "num_attention_heads": (2, 2),
        "num_hidden_layers": 2,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: Any = ClapModel(ClapConfig(text_config=text, audio_config=sizes | audio, projection_dim=16))
        for tensor in model.parameters():  # wider than at the start of training, so that sounds are distinguished
            tensor.data.add_(0.1 * torch.randn_like(tensor))
    model.save_pretrained(folder)
    tokenizer = RobertaTokenizer(vocab={word: i for i, word in enumerate(words)}, merges=[], model_max_length=38)
    extractor = ClapFeatureExtractor(feature_size=16, max_length_s=1, truncation="rand_trunc")
    ClapProcessor(extractor, tokenizer).save_pretrained(folder)
