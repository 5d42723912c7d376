"""The index that says where each tensor is in the files of a checkpoint, as JSON. DCP itself writes this index as a
pickle, which could run code when it is read."""

import json
from typing import Any, Protocol

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.storage import WriteResult

INDEX = "index.json"


class Files(Protocol):
    def read(self, name: str) -> bytes: ...
    def write(self, name: str, data: bytes) -> None: ...


def to_json(metadata: Metadata, locations: dict[MetadataIndex, _StorageInfo]) -> bytes:
    """Return the index of a checkpoint as JSON: type, shape and pieces of every tensor.

    A piece is a list: its offset in the tensor, its shape, its file, and its position and length in the file in bytes.
    """
    tensors: dict[str, Any] = {}
    for name, kind in metadata.state_dict_metadata.items():
        if not isinstance(kind, TensorStorageMetadata):
            raise TypeError(f"{name} is not a tensor: nothing else goes into these files")
        dtype = str(kind.properties.dtype).removeprefix("torch.")
        tensors[name] = {"dtype": dtype, "shape": list(kind.size), "pieces": []}
        for i, chunk in enumerate(kind.chunks):
            keys = (MetadataIndex(name, chunk.offsets, i), MetadataIndex(name))
            location = next(locations[key] for key in keys if key in locations)
            tensors[name]["pieces"].append(
                [list(chunk.offsets), list(chunk.sizes), location.relative_path, location.offset, location.length]
            )
    return json.dumps(tensors, separators=(",", ":")).encode()


def from_json(data: bytes) -> Metadata:
    tensors: dict[str, Any] = {}
    places: dict[MetadataIndex, _StorageInfo] = {}
    for name, entry in json.loads(data).items():
        dtype = getattr(torch, str(entry["dtype"]), None)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"{name} has no type of number that torch knows: {entry['dtype']!r}")
        chunks = []
        for i, (offsets, sizes, file, start, length) in enumerate(entry["pieces"]):
            if "/" in file or not file.endswith(".distcp"):
                raise ValueError(f"{name} is said to lie in {file!r}, which is no file of a checkpoint")
            chunks.append(ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)))
            places[MetadataIndex(name, torch.Size(offsets), i)] = _StorageInfo(file, int(start), int(length))
        tensors[name] = TensorStorageMetadata(TensorProperties(dtype), torch.Size(entry["shape"]), chunks)
    return Metadata(tensors, storage_data=places)


class IndexedWriter(FileSystemWriter):
    """DCP's writer of checkpoints, except that the index is written as JSON.

    A writer for another storage has two base classes: this class first, and then DCP's writer for that storage.
    """

    files: Files
    folder: str

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        places = {result.index: result.storage_data for part in results for result in part}
        self.files.write(f"{self.folder}/{INDEX}", to_json(metadata, places))


class IndexedReader(FileSystemReader):
    files: Files
    folder: str

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        metadata = from_json(self.files.read(f"{self.folder}/{INDEX}"))
        metadata.storage_meta = StorageMeta(load_id=self.load_id)
        return metadata
