"""Embeddings on disk, by the fingerprint of what made them: an encoder is asked once for each text or image."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from sage_grpo.files import draft_of

RECENT = 32  # kept in memory: a group asks for its prompt many times in a row
SAMPLED = 64  # elements of each parameter that enter the fingerprint


def fingerprint(pipe: Any, encoders: Sequence[str], settings: str) -> str:
    """Of the encoders' weights (some elements of each), their tokenizers and everything that shapes an embedding."""
    digest = blake2b(f"{settings} {transformers.__version__}".encode(), digest_size=16)
    for name in (*encoders, "vae"):
        part = getattr(pipe, name, None)
        for key, value in part.state_dict().items() if part is not None else ():
            flat = value.detach().flatten()
            some = flat[:: max(flat.numel() // SAMPLED, 1)].cpu().contiguous()
            digest.update(f"{key} {tuple(value.shape)} {value.dtype}".encode())
            digest.update(some.view(torch.uint8).numpy().tobytes() if some.numel() else b"")
    for name in sorted(pipe.components):
        if name.startswith("tokenizer") and (tokenizer := getattr(pipe, name)) is not None:
            backend = getattr(tokenizer, "backend_tokenizer", None)
            digest.update((backend.to_str() if backend else repr(tokenizer)).encode())
            digest.update(str(getattr(tokenizer, "chat_template", "")).encode())
    return digest.hexdigest()


class ConditionStore:
    """`get` returns what `make` made for this content, now or in an earlier run."""

    def __init__(self, folder: str | Path | None) -> None:
        self.folder = Path(folder) if folder else None
        self.recent: OrderedDict[str, dict[str, Tensor]] = OrderedDict()
        self.made = 0

    def get(self, space: tuple[str, ...], content: bytes, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        key = blake2b(repr(space).encode() + content, digest_size=20).hexdigest()
        tensors = self.recent.get(key) or self._read(key)
        if tensors is None:
            tensors = make()
            self.made += 1
            self._write(key, tensors)
        self.recent[key] = tensors
        self.recent.move_to_end(key)
        if len(self.recent) > RECENT:
            self.recent.popitem(last=False)
        return tensors

    def _path(self, key: str) -> Path | None:
        return self.folder / key[:2] / f"{key}.safetensors" if self.folder else None

    def _read(self, key: str) -> dict[str, Tensor] | None:
        path = self._path(key)
        if path is None or not path.exists():
            return None
        try:
            return load_file(path)
        except (SafetensorError, OSError):  # half a file of a full disk: make it again
            return None

    def _write(self, key: str, value: dict[str, Tensor]) -> None:
        path = self._path(key)
        if path is None:
            return
        with draft_of(path) as draft:  # several processes may write the same content
            save_file({k: v.contiguous() for k, v in value.items()}, draft)
