"""Captions as a large video model gets them: some are wrong and some are missing.

A model that learns from them makes clean clips of the wrong thing as often as its captions were wrong. The right
answer is in its distribution, and a reward can bring it out. Empty captions teach it what guidance leads away from.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

EMPTY = 0.1  # of all captions


def mistaken(indices: Tensor, kinds: int, share: float, generator: torch.Generator) -> Tensor:
    """Return the indices with a random `share` of them moved to one of the other kinds, each as likely as the next."""
    wrong = torch.rand(indices.shape, generator=generator) < share
    other = (indices + torch.randint(1, kinds, indices.shape, generator=generator)) % kinds
    return torch.where(wrong, other, indices)


def some_empty(captions: Sequence[str], generator: torch.Generator) -> list[str]:
    missing = torch.rand(len(captions), generator=generator) < EMPTY
    return ["" if gone else caption for caption, gone in zip(captions, missing.tolist(), strict=True)]
