"""Weights cut into shards by FSDP2, and filled from a checkpoint shard by shard: no process ever holds them whole."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from sage_grpo.core.protocols import VideoModel


def shard(model: VideoModel, mesh: DeviceMesh, compute: torch.dtype | None = None) -> None:
    """Each repeated block is a unit that is gathered while it works; the rest of a network is another."""
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32) if compute else MixedPrecisionPolicy()
    parts = list(model.module.children()) if isinstance(model.module, nn.ModuleDict) else [model.module]
    for block in model.shard_blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    for part in parts:
        fully_shard(part, mesh=mesh, mp_policy=policy)


def local(x: Tensor) -> Tensor:
    return x.to_local() if isinstance(x, DTensor) else x


def my_slice(x: Tensor) -> tuple[slice, ...]:
    """Which part of the whole tensor this process holds."""
    if not isinstance(x, DTensor):
        return tuple(slice(0, n) for n in x.shape)
    shape, offset = compute_local_shape_and_global_offset(x.shape, x.device_mesh, x.placements)
    return tuple(slice(start, start + n) for start, n in zip(offset, shape, strict=True))


class CheckpointFiles:
    """Tensors of a folder of safetensors files, read by slices."""

    def __init__(self, folder: Path) -> None:
        self.files: dict[str, Path] = {}
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, "pt") as file:
                self.files |= dict.fromkeys(file.keys(), path)

    def read(self, name: str, part: tuple[slice, ...]) -> Tensor:
        with safe_open(self.files[name], "pt") as file:
            found: Tensor = file.get_slice(name)[part] if part else file.get_tensor(name)
            return found


@torch.no_grad()
def fill(part: nn.Module, files: CheckpointFiles, made_here: Mapping[str, Tensor]) -> Iterator[str]:
    """Copy every parameter's shard from the checkpoint, or from `made_here` where the checkpoint has none (adapters).

    Yields the names as they are filled; a parameter found in neither is an error.
    """
    for name, parameter in part.named_parameters():
        source = name.replace(".base_layer.", ".")
        if name in made_here:
            value = made_here[name][my_slice(parameter)]
        elif source in files.files:
            value = files.read(source, my_slice(parameter))
        else:
            raise KeyError(f"the checkpoint has no {source}")
        local(parameter).copy_(value)
        yield name


def bytes_held(module: nn.Module) -> int:
    """Of parameters on this process."""
    return sum(local(p).numel() * p.element_size() for p in module.parameters())


