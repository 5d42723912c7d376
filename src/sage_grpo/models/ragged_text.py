"""Batches of text embeddings of different lengths, for networks that compute with only as many tokens as a text has."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad

from sage_grpo.core.protocols import Condition, Prompt
from sage_grpo.models.base import DiffusersModel

COUNT = "_count"  # tokens of each sample, a tensor on the host; only there where samples of a batch differ
TEXTS = ("text", "glyphs")


class OwnLengths(DiffusersModel):
    """An adapter whose `embed_text` returns embeddings without padding, so that their lengths differ between texts."""

    @torch.no_grad()
    def encode(self, prompts: Sequence[Prompt]) -> Condition:
        batch = together([self._row(prompt) for prompt in prompts])
        return {name: x if name.endswith(COUNT) else x.to(self.device) for name, x in batch.items()}

    def beside(self, positive: Condition, negative: Condition) -> Condition:
        return together([positive, negative])


def together(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Join the inputs of several samples or batches into one batch: tensors (B, …) by name.

    If texts differ in length, the shorter ones are padded with zeros. The number of tokens of each sample is then added
    as a tensor `<name>_count` (B,).
    """
    names = [name for name in parts[0] if not name.endswith(COUNT)]
    counts = {name: [n for p in parts for n in lengths_of(p, name)] for name in names if name.endswith(TEXTS)}
    mixed = any(len(set(lengths)) > 1 for lengths in counts.values())
    if mixed:
        parts = [{**part, **{name: filled(part[name], max(n)) for name, n in counts.items()}} for part in parts]
    batch = {name: torch.cat([part[name] for part in parts]) for name in names}
    return batch | ({name + COUNT: torch.tensor(lengths) for name, lengths in counts.items()} if mixed else {})


def lengths_of(part: Mapping[str, Tensor], name: str) -> list[int]:
    tokens, told = part[name], part.get(name + COUNT)
    return [tokens.shape[1]] * len(tokens) if told is None else told.tolist()


def filled(tokens: Tensor, length: int) -> Tensor:
    return pad(tokens, (0, 0, 0, length - tokens.shape[1]))


def runs(lengths: Sequence[object]) -> list[slice]:
    """Return a slice for each run of neighbouring samples with equal lengths, such as the samples of one prompt."""
    ends = [i for i in range(1, len(lengths)) if lengths[i] != lengths[i - 1]]
    return [slice(first, last) for first, last in pairwise([0, *ends, len(lengths)])]
