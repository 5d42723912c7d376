"""The generator of numbers: the laboratory's transformer at another size of clip, and with digits for words."""

from collections.abc import Mapping, Sequence

import torch
from tokenizers import Tokenizer, normalizers, pre_tokenizers

from sage_grpo.config import ConfigError
from sage_grpo.lab.digits import world as text
from sage_grpo.lab.shapes.model import ShapesModel, ShapesTransformer, make_tokenizer
from sage_grpo.registry import model

WORDS = ("the", "number", "in", *map(str, range(10)), *text.COLOURS)
TEXT_LENGTH = 8  # the number d d d d in colour


def text_tokenizer() -> Tokenizer:
    """A token for each digit; quotation marks are for readers of the prompt."""
    tokenizer = make_tokenizer(WORDS, TEXT_LENGTH)
    tokenizer.normalizer = normalizers.Replace('"', " ")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=True)]
    )
    return tokenizer


def text_transformer() -> ShapesTransformer:
    """A token spans all frames, so that they agree on the digit. Which digit is where must be learned from places, so
    these begin as large as the words; begun small, they are not found."""
    size = (text.FRAMES, text.HEIGHT, text.WIDTH)
    module = ShapesTransformer(
        width=96, vocabulary=len(WORDS) + 2, text_length=TEXT_LENGTH, clip=size, patch=(text.FRAMES, 8, 4)
    )
    with torch.no_grad():
        for places in (module.word_places, module.places):
            places.mul_(50)
    return module


@model("text")
class TextModel(ShapesModel):
    """`VideoModel` of the numbers."""

    own_monitors = ()
    shipped = "sage_grpo.lab.digits"

    def __init__(self, module: ShapesTransformer | None = None, tokenizer: Tokenizer | None = None) -> None:
        super().__init__(module or text_transformer(), tokenizer or text_tokenizer())
        if self.clip != (text.FRAMES, text.HEIGHT, text.WIDTH):
            raise ConfigError(f"a model of clips {self.clip} writes no numbers; use one of `lab pretrain --world text`")

    @classmethod
    def own_prompts(cls) -> Sequence[str]:
        return text.training_prompts()

    @classmethod
    def prompt_tags(cls, prompt: str) -> Mapping[str, str]:
        return {}
