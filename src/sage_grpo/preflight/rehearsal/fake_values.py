"""Values for tensors of the fake device: small ones that follow from the host alone are kept, others made up."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map_only

from sage_grpo.distributed.device import HOST
from sage_grpo.preflight.rehearsal.fake_ledger import Place, here

aten = torch.ops.aten
SMALL = 64  # elements: noise levels, times and masks, which decide on branches
FACTORIES = {
    aten.full.default,
    aten.zeros.default,
    aten.ones.default,
    aten.scalar_tensor.default,
    aten.arange.default,
    aten.arange.start,
    aten.arange.start_step,
}
FILLS = {
    aten.new_full.default,
    aten.new_zeros.default,
    aten.new_ones.default,
    aten.full_like.default,
    aten.zeros_like.default,
    aten.ones_like.default,
}


def made_up(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return made-up values that are finite, positive and not all alike, because equal rewards teach nothing.

    Masks and integers other than uint8 are all True or 1.
    """
    count = torch.Size(shape).numel()
    if dtype.is_floating_point or dtype.is_complex:
        return (1 - torch.arange(count) / (2 * max(count, 1))).to(dtype).view(shape)
    if dtype == torch.uint8:  # frames
        return (1 + torch.arange(count) % 251).to(dtype).view(shape)
    return torch.ones(shape, dtype=dtype)


def values_of(x: Tensor) -> Tensor | None:
    """Return the values of a tensor, or None if they are not known.

    They are known for tensors of at most `SMALL` elements that follow from the host alone and were not written to
    since.
    """
    if not isinstance(x, FakeTensor):
        return x if x.numel() <= SMALL and not x.is_meta else None
    version, values = getattr(x, "kept", (None, None))
    return values if version == x._version else None


def answer(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return what the host gets if it reads a tensor of the device: its values if known, else made-up ones."""
    values = values_of(x)
    return made_up(x.shape, dtype or x.dtype) if values is None else values.to(dtype or x.dtype, copy=True)


def keep_values(func: Any, args: Sequence[Any], named: Mapping[str, Any], leaves: Sequence[Any], out: Any) -> None:
    """Keep the values of the result `out` of an operation on the device, if it is small and its inputs are known.

    The values are computed on the host, by the same operation.
    """
    if not isinstance(out, FakeTensor) or out.numel() > SMALL:
        return
    tensors = [x for x in leaves if isinstance(x, Tensor)]
    certain = all(values_of(x) is not None for x in tensors) and _plain(func) if tensors else func in FACTORIES
    if func not in FILLS and not certain:
        return
    host_args = tree_map_only(FakeTensor, values_of if certain else _room, tuple(args))
    host_kwargs = {name: HOST if isinstance(value, torch.device) else value for name, value in named.items()}
    out.kept = (out._version, func(*host_args, **host_kwargs))  # type: ignore[attr-defined]


def _room(x: FakeTensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype)


def _plain(func: Any) -> bool:
    """Return whether an operation's result is new, and the same every time."""
    plain: bool = not (func.is_view or func._schema.is_mutable or torch.Tag.nondeterministic_seeded in func.tags)
    return plain and func not in (aten.empty_like.default, aten.new_empty.default)


class Origin(NamedTuple):
    """The place in the program where a tensor of the host was made, or where it left the device."""

    place: Place
    left: bool  # the device, there; otherwise it was made there


def signed(out: Any, parents: Sequence[Any] = (), *, left: bool = False) -> Any:
    """Return a result on the host with a note of its origin, for messages about tensors that must not be there.

    If one of its `parents` had left the device, it has the origin of that parent.
    """
    if isinstance(out, Tensor) and out.dim():
        known = (getattr(x, "origin", None) for x in parents if isinstance(x, Tensor))
        out.origin = next((o for o in known if o and o.left), None) or Origin(here(), left)  # type: ignore[attr-defined]
    return out


def described(x: Tensor) -> str:
    """Return a text about a tensor for messages: type, size, whether it is of host or device, and origin."""
    text = f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
    if isinstance(x, FakeTensor):
        return f"{text} of the device"
    origin: Origin | None = getattr(x, "origin", None)
    how = f" ({'left the device' if origin.left else 'made'} at {origin.place})" if origin else ""
    return f"{text} of the host{how}"
