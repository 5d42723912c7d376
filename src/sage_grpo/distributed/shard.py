"""Sharding of weights by FSDP2, and reading of a checkpoint by shards. No process ever holds the weights whole."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from sage_grpo.core.copy_bank import Fill
from sage_grpo.core.video_model import VideoModel, networks

MATRICES = (nn.Linear, nn.modules.conv._ConvNd)  # layers whose weights autocast casts
Adapter = Callable[[str, tuple[int, ...]], Tensor]
Read = Callable[[str, tuple[slice, ...]], Tensor]


def shard(model: VideoModel, mesh: DeviceMesh, compute: torch.dtype | None = None) -> None:
    """Shard a model's weights over the processes of `mesh`, in place.

    The weights of each repeated block are gathered while the block runs. The rest of a network is gathered together.

    Results must not depend on the number of processes. So weights are gathered in the type that a single process holds,
    inputs are not cast, and autocast does the rest. In a block without adapters, matrices are sent in the type
    `compute`, to which autocast casts them anyway: half the bytes, the same results. Norms and tables of such a block
    are gathered separately, because autocast does not cast them. A compiled block is gathered as a whole.
    """
    for block in model.shard_blocks:
        if compute and not _adapted(block) and not _compiled(block):
            policy = MixedPrecisionPolicy(compute, torch.float32, cast_forward_inputs=False)
            matrices = list(_matrices(block))
            for unit in _by_training(matrices):
                fully_shard(unit, mesh=mesh, mp_policy=policy)
            for unit in _by_training(_others(block, matrices)):
                fully_shard(unit, mesh=mesh)
        fully_shard(block, mesh=mesh)
    for part in networks(model.module).values():
        # By default the outermost unit stays gathered after a forward pass: copies, anchors and checkpoints made
        # between passes would then see old or whole weights.
        fully_shard(part, mesh=mesh, reshard_after_forward=True)


def _adapted(block: nn.Module) -> bool:
    """Return whether a block has adapters. Its own weights are then frozen, in the type of the arithmetic."""
    return any(".lora_" in name for name, _ in block.named_parameters())


def _compiled(block: nn.Module) -> bool:
    """Return whether a block is compiled. It is then one graph, which units inside it would break."""
    return block._compiled_call_impl is not None


def _owns(module: nn.Module) -> bool:
    return next(module.parameters(recurse=False), None) is not None


def _matrices(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the largest submodules whose weights are all in linear or convolution layers.

    Lists of modules are not yielded, because they are never called.
    """
    for child in module.children():
        own = [layer for layer in child.modules() if _owns(layer)]
        whole = all(isinstance(layer, MATRICES) for layer in own)
        if own and whole and not isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield child
        else:
            yield from _matrices(child)


def _others(block: nn.Module, matrices: Sequence[nn.Module]) -> list[nn.Module]:
    """Return the layers of a block that hold its weights outside of `matrices`; none if the block itself holds some.

    A block that is a unit without need changes the order in which gradients of its inputs are summed.
    """
    inside = {layer for module in matrices for layer in module.modules()}
    layers = [layer for layer in block.modules() if _owns(layer) and layer not in inside]
    return [] if block in layers else layers


def _by_training(modules: Iterable[nn.Module]) -> list[list[nn.Module]]:
    """Split modules into a unit of trained ones and a unit of frozen ones, where there are any.

    FSDP2 gathers a unit again when the gradient of its last module's output arrives. A frozen module may get none, so
    it must never be the last one of a trained unit.
    """
    units: dict[bool, list[nn.Module]] = {True: [], False: []}
    for module in modules:
        units[any(p.requires_grad for p in module.parameters())].append(module)
    return [unit for unit in units.values() if unit]


def local(x: Tensor) -> Tensor:
    return x.to_local() if isinstance(x, DTensor) else x


def my_slice(x: Tensor) -> tuple[slice, ...]:
    """Return which part of the full tensor `x` this process holds, as one slice per axis."""
    if not isinstance(x, DTensor):
        return tuple(slice(0, n) for n in x.shape)
    shape, offset = compute_local_shape_and_global_offset(x.shape, x.device_mesh, x.placements)
    return tuple(slice(start, start + n) for start, n in zip(offset, shape, strict=True))


class CheckpointFiles:
    """A reader of the safetensors files in a folder, which reads only the part of a tensor that is needed."""

    def __init__(self, folder: Path) -> None:
        self.files: dict[str, Path] = {}
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, "pt") as file:
                self.files |= dict.fromkeys(file.keys(), path)

    @contextmanager
    def reading(self) -> Iterator[Read]:
        """Yield a function `read(name, slices)` that returns a part of a tensor, with one slice per axis.

        Inside the block, no file is opened twice.
        """
        with ExitStack() as stack:
            opened = cache(lambda path: stack.enter_context(safe_open(path, "pt")))

            def read(name: str, part: tuple[slice, ...]) -> Tensor:
                if name not in self.files:
                    raise KeyError(f"the checkpoint has no {name}")
                file = opened(self.files[name])
                tensor: Tensor = file.get_slice(name)[part] if part else file.get_tensor(name)
                return tensor

            yield read


def base_weights(model: VideoModel) -> Fill | None:
    """Return a function that sets the parameters that it is given, by name, to the weights of the model's checkpoint.

    Each process reads and writes its own part. Return None in place of the function if the model has no checkpoint
    folder, or if the checkpoint lacks one of the trained parameters.
    """
    if model.folder is None:
        return None
    places: dict[str, tuple[CheckpointFiles, str]] = {}  # by name of the parameter: its files, and its name there
    for component, part in networks(model.module).items():
        files = CheckpointFiles(Path(model.folder) / component)
        prefix = f"{component}." if isinstance(model.module, nn.ModuleDict) else ""
        places |= {prefix + name: (files, name) for name, _ in part.named_parameters()}
    trained = [name for name, parameter in model.module.named_parameters() if parameter.requires_grad]
    if any(places[name][1] not in places[name][0].files for name in trained):
        return None

    def read(parameters: Mapping[str, nn.Parameter]) -> None:
        with ExitStack() as stack:
            opened = cache(lambda files: stack.enter_context(files.reading()))
            for name, parameter in parameters.items():
                files, there = places[name]
                local(parameter).copy_(opened(files)(there, my_slice(parameter)))

    return read


@torch.no_grad()
def fill(model: VideoModel, folder: Path, device: torch.device, adapter: Adapter) -> None:
    """Allocate a model's empty shards on `device`, and read this process's part of every weight from the checkpoint.

    Args:
        model: The model, with empty weights.
        folder: Folder of the checkpoint.
        device: Device of this process.
        adapter: Function of name and shape that returns the initial weights of an adapter, which no checkpoint has.
    """
    for component, part in networks(model.module).items():
        files, buffers = CheckpointFiles(folder / component), {n: b.clone() for n, b in part.named_buffers()}
        part.to_empty(device=device)
        prefix = f"{component}." if isinstance(model.module, nn.ModuleDict) else ""
        with files.reading() as read:
            for name, buffer in part.named_buffers():
                buffer.copy_(read(name, my_slice(buffer)) if name in files.files else buffers[name])
            for name, parameter in part.named_parameters():
                if ".lora_" in name:
                    value = adapter(prefix + name, tuple(parameter.shape))[my_slice(parameter)]
                else:
                    value = read(name.replace(".base_layer.", "."), my_slice(parameter))
                local(parameter).copy_(value)
