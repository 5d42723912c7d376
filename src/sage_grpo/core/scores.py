"""Scores of videos. A failed score is always marked by a mask, never by a special number."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

LARGEST = 1e30  # of a score; squares of larger ones overflow, and advantages with them


@dataclass(frozen=True)
class Scores:
    """Scores of videos: one row per video, one column per named score.

    Where `valid` is false, the value means nothing. This class alone decides what a failure is: a number that is not
    finite, or beyond ±`LARGEST`, is never valid, whatever the given mask says.

    Examples:
        >>> Scores.of(torch.tensor([[0.5, 1.0], [torch.nan, 1.0]])).valid.tolist()
        [[True, True], [False, True]]
    """

    values: Tensor
    """Scores (B, R)."""
    valid: Tensor
    """Mask (B, R), boolean: which scores are valid."""

    def __post_init__(self) -> None:
        if self.valid.shape != self.values.shape:
            raise ValueError(f"{tuple(self.values.shape)} scores with a mask of {tuple(self.valid.shape)}")
        usable = self.values.double().abs() <= LARGEST
        object.__setattr__(self, "valid", self.valid.bool() & self.values.isfinite() & usable)

    @classmethod
    def of(cls, values: Tensor) -> Self:
        """Return `values` (B, R) as scores, which are valid where they are finite and within ±`LARGEST`."""
        return cls(values, torch.ones_like(values, dtype=torch.bool))

    @classmethod
    def failed(cls, videos: int, scores: int) -> Self:
        """Return scores (videos, scores) of which none is valid."""
        return cls.of(torch.full((videos, scores), torch.nan, dtype=torch.float64))

    @classmethod
    def rows(cls, parts: Sequence["Scores"]) -> Self:
        """Concatenate the same scores of several batches of videos: (B₁ + B₂ + …, R)."""
        return cls(torch.cat([part.values for part in parts]), torch.cat([part.valid for part in parts]))

    @classmethod
    def columns(cls, parts: Sequence["Scores"]) -> Self:
        """Concatenate different scores of the same videos: (B, R₁ + R₂ + …)."""
        return cls(torch.cat([part.values for part in parts], 1), torch.cat([part.valid for part in parts], 1))

    def on_host(self) -> "Scores":
        """Return the scores on the host in float64, the form in which they are summed and compared."""
        return Scores(self.values.double().cpu(), self.valid.cpu())
