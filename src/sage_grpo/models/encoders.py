"""Encoders that are left out of memory, and loaded only while there is something to encode."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sage_grpo.models.loading import Precisions


@dataclass(frozen=True)
class LeftOut:
    """The folder of encoders that are left out, and the precisions in which the rest of the pipeline was loaded."""

    folder: Path
    kinds: Precisions

    def load(self, pipe: Any, names: Sequence[str]) -> dict[str, nn.Module]:
        """Load the named encoders that the checkpoint has, and return them on the host.

        The library's own loader reads them. It is given what `pipe` holds, so that nothing else is read.
        """
        held = {name: part for name, part in pipe.components.items() if name not in names}
        with torch.random.fork_rng(devices=[]):  # a run's numbers must not depend on what was encoded before it
            whole = type(pipe).from_pretrained(str(self.folder), dtype=self.kinds, use_safetensors=True, **held)
        parts = {name: getattr(whole, name, None) for name in names}
        return {name: part.requires_grad_(False).eval() for name, part in parts.items() if part is not None}
