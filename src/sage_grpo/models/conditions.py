"""A store of text and image embeddings on disk, so that the encoders compute each embedding only once.

The key of an embedding has a fingerprint of the encoders in it. So a changed encoder never gets another's embeddings.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save_file
from torch import Tensor

from sage_grpo.files import draft_of

RECENT = 32  # kept in memory: a group asks for its prompt many times in a row
SAMPLED = 64  # elements of each parameter that enter the fingerprint of weights
PLACES, PIECE = 8, 512  # of each tensor of a file that enter the fingerprint of files, and bytes at each
DIGEST = "digest"  # of a file's content, in its header


def fingerprint(pipe: Any, encoders: Sequence[str], settings: str, folder: Path | None = None) -> str:
    """Return a digest of all that embeddings depend on: encoders, VAE, tokenizers, settings and library versions.

    Args:
        settings: The adapter's options that change embeddings, as one text.
        folder: The checkpoint's folder if the encoders are not in memory. Their files are then read in place of their
            weights.
    """
    versions = f"{transformers.__version__} {diffusers.__version__}"
    digest = blake2b(f"{settings} {versions}".encode(), digest_size=16)
    for name in encoders:
        digest.update(_of_files(folder / name) if folder else _of_weights(getattr(pipe, name, None)))
    digest.update(_of_weights(getattr(pipe, "vae", None)))  # it encodes first frames
    for name in sorted(pipe.components):
        if name.startswith("tokenizer") and (tokenizer := getattr(pipe, name)) is not None:
            backend = getattr(tokenizer, "backend_tokenizer", None)
            # no repr: a folder is in it
            words = backend.to_str() if backend else f"{type(tokenizer)} {sorted(tokenizer.get_vocab().items())}"
            digest.update(words.encode())
            digest.update(str(getattr(tokenizer, "chat_template", "")).encode())
    return digest.hexdigest()


def _of_weights(part: Any) -> bytes:
    digest = blake2b()
    for key, value in part.state_dict().items() if part is not None else ():
        flat = value.detach().flatten()
        some = flat[:: max(flat.numel() // SAMPLED, 1)].cpu().contiguous()
        digest.update(f"{key} {tuple(value.shape)} {value.dtype}".encode())
        digest.update(some.view(torch.uint8).numpy().tobytes() if some.numel() else b"")
    return digest.digest()


def _of_files(folder: Path) -> bytes:
    """Return a digest of a component's files: JSON whole, of weights the header and some pieces of each tensor.

    Encoders have many gigabytes of weights, which would take too long to read whole.
    """
    digest = blake2b(folder.name.encode())
    for path in sorted(folder.glob("*")):
        if path.suffix == ".json":
            digest.update(path.name.encode() + path.read_bytes())
        if path.suffix == ".safetensors":
            with path.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                digest.update(path.name.encode() + (header := file.read(size)))
                for name, tensor in json.loads(header).items():
                    first, end = tensor["data_offsets"] if name != "__metadata__" else (0, 0)
                    for place in range(first, end, max((end - first) // PLACES, PIECE)):
                        file.seek(8 + size + place)
                        digest.update(file.read(min(PIECE, end - place)))
    return digest.digest()


def _of_content(key: str, tensors: Mapping[str, Tensor]) -> str:
    """Return a digest of an entry's key and tensors.

    The digest is stored in the entry's file, and reveals damaged or misplaced files.
    """
    digest = blake2b(key.encode(), digest_size=20)
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        digest.update(value.contiguous().flatten().view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return digest.hexdigest()


class ConditionStore:
    """A store of embeddings: `get` returns what is stored for a text or image, or else calls `make` and stores that.

    If `folder` is None, only the latest few embeddings are kept, in memory.
    """

    def __init__(self, folder: str | Path | None) -> None:
        self.folder = Path(folder) if folder else None
        self.recent: OrderedDict[str, dict[str, Tensor]] = OrderedDict()
        self.made = 0

    def get(self, space: tuple[str, ...], content: bytes, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        key = self._key(space, content)
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

    def has(self, space: tuple[str, ...], content: bytes) -> bool:
        """Return whether the folder has a complete file for this space and content.

        `content` is a text or image, and `space` is all else that its embedding depends on. The file's tensors are only
        verified when `get` reads them.
        """
        path = self._path(self._key(space, content))
        try:
            if path is None or not path.exists():
                return False
            with safe_open(path, "pt") as file:
                return DIGEST in (file.metadata() or {})
        except (SafetensorError, OSError):
            return False

    def _key(self, space: tuple[str, ...], content: bytes) -> str:
        return blake2b(repr(space).encode() + content, digest_size=20).hexdigest()

    def _path(self, key: str) -> Path | None:
        return self.folder / key[:2] / f"{key}.safetensors" if self.folder else None

    def _read(self, key: str) -> dict[str, Tensor] | None:
        path = self._path(key)
        if path is None or not path.exists():
            return None
        try:
            data = path.read_bytes()
            tensors = load(data)
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        except (SafetensorError, OSError):  # half a file of a full disk: make it again
            return None
        return tensors if header.get("__metadata__", {}).get(DIGEST) == _of_content(key, tensors) else None

    def _write(self, key: str, value: dict[str, Tensor]) -> None:
        path = self._path(key)
        if path is None:
            return
        whole = {name: x.contiguous() for name, x in value.items()}
        with draft_of(path) as draft:  # several processes may write the same content
            save_file(whole, draft, {DIGEST: _of_content(key, whole)})
