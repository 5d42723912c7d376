"""The model of the world of four-digit numbers: its clip size, its words, and a token for each digit."""

from collections.abc import Sequence

import torch
from tokenizers import Tokenizer, normalizers, pre_tokenizers

from sage_grpo.lab.digits import world as text
from sage_grpo.lab.generator import LabModel, LabTransformer
from sage_grpo.registry import model


@model("text")
class TextModel(LabModel):
    """The `VideoModel` that makes clips of a four-digit number."""

    world = "text"
    shipped = "sage_grpo.lab.digits"
    clip, patch, channels = (text.FRAMES, text.HEIGHT, text.WIDTH), (text.FRAMES, 8, 8), 16
    words = ("the", "number", "in", *map(str, range(10)), *text.COLOURS)
    text_length = 8  # the number d d d d in colour

    @classmethod
    def new_module(cls, latents: Sequence[int], width: int = 96) -> LabTransformer:
        """Return a new network whose position embeddings are as large as its word embeddings.

        The network must learn from positions which digit is where, and large position embeddings make this faster.
        `latents` is the shape of a latent: channels, frames, rows and columns; `width` is that of the network.
        """
        module = super().new_module(latents, width)
        with torch.no_grad():
            for places in (module.word_places, module.places):
                places.mul_(places.shape[1] ** 0.5)
        return module

    @classmethod
    def new_tokenizer(cls) -> Tokenizer:
        """Return a tokenizer with a token for each word and each digit.

        It drops quotation marks, which mark the number in the prompt for OCR only.
        """
        tokenizer = super().new_tokenizer()
        tokenizer.normalizer = normalizers.Replace('"', " ")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=True)]
        )
        return tokenizer

    @classmethod
    def own_prompts(cls) -> Sequence[str]:
        return text.training_prompts()
