"""Captions for pre-training with the flaws of real ones: some are wrong, and some are empty.

A model that learns from them makes clean clips of the wrong thing as often as its captions were wrong. It makes right
ones too, so a reward can make these more likely. Empty captions teach the model the empty prompt, which guidance leads
away from.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

EMPTY = 0.1  # of all captions


def mistaken(indices: Tensor, kinds: int, share: float, generator: torch.Generator) -> Tensor:
    """Return `indices`, each from 0 to `kinds` − 1, with a random share of them replaced by another index.

    `share` is the probability of a replacement. All other indices are equally likely.
    """
    wrong = torch.rand(indices.shape, generator=generator) < share
    other = (indices + torch.randint(1, kinds, indices.shape, generator=generator)) % kinds
    return torch.where(wrong, other, indices)


def some_empty(captions: Sequence[str], generator: torch.Generator) -> list[str]:
    missing = torch.rand(len(captions), generator=generator) < EMPTY
    return ["" if gone else caption for caption, gone in zip(captions, missing.tolist(), strict=True)]
