"""The generator of numbers: the laboratory's transformer at another size of clip, and with digits for words."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tokenizers import Tokenizer, normalizers, pre_tokenizers

from sage_grpo.config import ConfigError
from sage_grpo.lab.autoencoder import Autoencoder
from sage_grpo.lab.digits import world as text
from sage_grpo.lab.shapes.model import ShapesModel, ShapesTransformer, make_tokenizer
from sage_grpo.registry import model

WORDS = ("the", "number", "in", *map(str, range(10)), *text.COLOURS)
CLIP, PATCH, CHANNELS = (text.FRAMES, text.HEIGHT, text.WIDTH), (text.FRAMES, 8, 8), 16
TEXT_LENGTH = 8  # the number d d d d in colour


def text_tokenizer() -> Tokenizer:
    """A token for each digit; quotation marks are for readers of the prompt."""
    tokenizer = make_tokenizer(WORDS, TEXT_LENGTH)
    tokenizer.normalizer = normalizers.Replace('"', " ")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=True)]
    )
    return tokenizer


def text_transformer(latents: Sequence[int]) -> ShapesTransformer:
    """Which digit is where must be learned from places, so these begin as large as the words: it is found sooner."""
    module = ShapesTransformer(vocabulary=len(WORDS) + 2, text_length=TEXT_LENGTH, latents=latents)
    with torch.no_grad():
        for places in (module.word_places, module.places):
            places.mul_(places.shape[1] ** 0.5)
    return module


@model("text")
class TextModel(ShapesModel):
    """`VideoModel` of the numbers."""

    own_monitors = ()
    shipped = "sage_grpo.lab.digits"

    def __init__(
        self,
        module: ShapesTransformer | None = None,
        tokenizer: Tokenizer | None = None,
        autoencoder: Autoencoder | None = None,
        **guidance: Any,
    ) -> None:
        autoencoder = autoencoder or Autoencoder(CLIP, PATCH, CHANNELS)
        module = module or text_transformer(autoencoder.latent_shape)
        super().__init__(module, tokenizer or text_tokenizer(), autoencoder, **guidance)
        if autoencoder.clip != CLIP:
            made = autoencoder.clip
            raise ConfigError(f"a model of clips {made} writes no numbers; use one of `lab pretrain --world text`")

    @classmethod
    def own_prompts(cls) -> Sequence[str]:
        return text.training_prompts()

    @classmethod
    def prompt_tags(cls, prompt: str) -> Mapping[str, str]:
        return {}
