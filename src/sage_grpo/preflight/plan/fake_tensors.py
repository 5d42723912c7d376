"""Tensors without values, on which a network at full size runs all its operations without their memory and time."""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode

from sage_grpo.distributed.device import HOST


class MaskedRows(torch.autograd.Function):
    """An autograd function that selects rows by a mask, for tensors without values.

    `rows` is the number of rows to keep. The mask is saved for the backward pass, as in torch's own indexing.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor, rows: int) -> Tensor:
        ctx.save_for_backward(mask)
        ctx.shape = x.shape
        return x.new_empty(rows, *x.shape[mask.dim() :])

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient[0].new_zeros(ctx.shape), None, None


class NoValues(TorchFunctionMode):
    """A mode that answers questions about the values of tensors that have none.

    As a condition, such a tensor is True. As a mask, it keeps all rows, and its inverse keeps none.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is Tensor.__bool__ and isinstance(args[0], FakeTensor):
            return True
        if func is Tensor.__setitem__ and isinstance(args[0], FakeTensor) and isinstance(args[2], int | float):
            return None  # some decoders fill masks row by row
        if func is Tensor.__getitem__ and isinstance(mask := args[1], FakeTensor) and mask.dtype == torch.bool:
            rows = 0 if getattr(mask, "inverted", False) else mask.numel()
            return MaskedRows.apply(args[0], mask, rows)  # type: ignore[no-untyped-call]
        out = func(*args, **(kwargs or {}))
        if func in (Tensor.__invert__, torch.bitwise_not) and isinstance(out, FakeTensor):
            out.inverted = not getattr(args[0], "inverted", False)  # type: ignore[attr-defined]
        return out


@contextmanager
def without_values() -> Iterator[None]:
    with FakeTensorMode(allow_non_fake_inputs=True), NoValues():  # tables of positions that are no buffers
        yield


@torch.no_grad()
def imagine_weights(module: nn.Module) -> None:
    """Replace the weights and buffers of a module with tensors on the host that take no memory.

    Call it inside `without_values`. If the old weights were converted there instead, both would be kept.
    """
    for layer in module.modules():
        for name, weight in layer._parameters.items():
            if weight is not None:
                room = torch.empty(weight.shape, dtype=weight.dtype, device=HOST)
                layer._parameters[name] = nn.Parameter(room, requires_grad=weight.requires_grad)
        for name, buffer in layer._buffers.items():
            if buffer is not None:
                layer._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device=HOST)


@contextmanager
def uncollected() -> Iterator[None]:
    """Switch Python's garbage collector off inside the block, so that measured memory does not depend on it.

    Tensors in reference cycles are kept until the end of the block, not until Python happens to look for them.
    """
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
