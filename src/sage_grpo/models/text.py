"""The generator of numbers: the laboratory's transformer at another size of clip, and with digits for words."""

from tokenizers import Tokenizer, normalizers, pre_tokenizers

from sage_grpo.models.shapes import ShapesModel, ShapesTransformer, make_tokenizer
from sage_grpo.worlds import text

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
    return ShapesTransformer(
        width=80, vocabulary=len(WORDS) + 2, text_length=TEXT_LENGTH, clip=(text.FRAMES, text.HEIGHT, text.WIDTH)
    )


class TextModel(ShapesModel):
    """`VideoModel` of the numbers."""

    shipped = "text_base"

    def __init__(self, module: ShapesTransformer | None = None, tokenizer: Tokenizer | None = None) -> None:
        super().__init__(module or text_transformer(), tokenizer or text_tokenizer())
