"""Loading of encoders that stay out of memory, except while there is a text or image to encode."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sage_grpo.models.loading import Precisions


@dataclass(frozen=True)
class LeftOut:
    """A loader of encoders that are kept out of memory: their checkpoint, and the precisions to load components in."""

    folder: Path
    kinds: Precisions

    def load(self, pipe: Any, names: Sequence[str]) -> dict[str, nn.Module]:
        """Load the named encoders into the host's memory, and return them by name.

        Names that the checkpoint lacks are left out. Diffusers' own loader gets the components that `pipe` already has,
        so that it reads only the encoders from disk.
        """
        held = {name: part for name, part in pipe.components.items() if name not in names}
        with torch.random.fork_rng(devices=[]):  # a run's numbers must not depend on what was encoded before it
            whole = type(pipe).from_pretrained(str(self.folder), dtype=self.kinds, use_safetensors=True, **held)
        parts = {name: getattr(whole, name, None) for name in names}
        return {name: part.requires_grad_(False).eval() for name, part in parts.items() if part is not None}
