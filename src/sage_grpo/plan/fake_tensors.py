"""Tensors without values: on them a network at full size does all it would do, and takes neither memory nor time."""

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
    """Rows chosen by a mask, for tensors without values.

    The mask is saved for the backward pass, as in torch's own indexing.
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
    """A mode that answers for tensors without values.

    Every question is true, a mask keeps all rows and its inverse none.
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
    """Replace the weights and buffers of a module with tensors of the host that take no memory.

    Call it inside `without_values`. Moving the old ones there would keep both.
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
    """Switch Python's garbage collector off inside the block.

    Reference cycles keep tensors until Python happens to look for them; here they are kept to the end.
    """
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
