"""A fake CUDA device, whose tensors have sizes and types but no values: the rules of CUDA without a GPU.

Tensors of the host are real. A tensor that is moved to the device becomes a `FakeTensor` of torch. An operation on
tensors of both is an error that names its line. A tensor that comes back to the host is entered in the ledger, and its
values are mostly made up.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor, FakeTensorMode
from torch._subclasses.fake_tensor import in_kernel_invocation_manager as as_meta
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from sage_grpo.distributed.device import HOST
from sage_grpo.errors import UserError
from sage_grpo.preflight.rehearsal.fake_ledger import Ledger, here
from sage_grpo.preflight.rehearsal.fake_values import answer, described, keep_values, signed, values_of

aten = torch.ops.aten
DEVICE = torch.device("cuda", 0)
META = torch.device("meta")
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._unsafe_index.Tensor}
INVERSES = {aten.bitwise_not.default, aten.logical_not.default}
PLAIN = {torch.Tensor, torch.nn.Parameter, FakeTensor}


class DeviceMixture(UserError, RuntimeError):
    """Raised when one operation is given tensors of the host and of the device."""


class Unanswerable(UserError, RuntimeError):
    """Raised when the size of a result depends on the values of a tensor that has none."""


def size_of(x: Tensor) -> int:
    return x.numel() * x.element_size()


class FakeDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that runs operations by the rules of the fake device.

    Results are kept by operation and sizes, because a model repeats its operations.
    """

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ledger = ledger
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.answers: dict[Any, Any] = {}
        self.rules: dict[Any, Callable[..., Any]] = {
            aten._local_scalar_dense.default: self._number,
            aten.equal.default: self._equal,
            aten.nonzero.default: self._nonzero,
            aten.masked_select.default: self._chosen,
            aten.copy_.default: self._copy,
        } | dict.fromkeys(INDEXING, self._index)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            return DEVICE  # by far the most frequent question
        if any(kind not in PLAIN and kind.__torch_dispatch__ is not Tensor.__torch_dispatch__ for kind in types):
            return NotImplemented  # a sharded tensor: it asks again for its parts
        named = dict(kwargs or {})
        leaves = _leaves(args, named)
        if not any(isinstance(x, FakeTensor) for x in leaves):
            arrives = DEVICE in map(_device, leaves)
            return self._arrive(func, args, named) if arrives else signed(func(*args, **named), leaves)
        target = _device(named.get("device"))
        if target is not None and target != DEVICE:
            return self._leave(func, args, named)
        rule = self.rules.get(func)
        return rule(func, args, named) if rule else self._compute(func, args, named, leaves)

    # On the device ------------------------------------------------------------------------------------------

    def _compute(self, func: Any, args: tuple[Any, ...], named: dict[str, Any], leaves: list[Any]) -> Any:
        if func.namespace != aten.name:  # messages between processes
            return self._ask(func, args, named)
        if func is aten._unsafe_view.default:
            func = aten.view.default  # the same to whoever has no values, and torch remembers this one
        key = (func, *_lengths(args), *named, *map(_outline, leaves))
        again = self.answers.get(key)
        if again is not None:
            out = again(func, args, named)
            keep_values(func, args, named, leaves, out)
            return out
        before = _outline(args[0]) if args else None
        out = self._ask(func, args, named)
        self.answers[key] = self._recipe(func, args, before, out)
        if func in INVERSES:
            out.inverted = not getattr(args[0], "inverted", False)
        keep_values(func, args, named, leaves, out)
        return out

    def _ask(self, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Run an operation by torch's own rules, which know what may be mixed: a single number of the host may."""
        try:
            with self.fake:
                return func(*args, **named)
        except DynamicOutputShapeException as error:
            raise Unanswerable(
                f"{here()}: the size of what {func} returns depends on values, which this rehearsal has none of; on a "
                "GPU it makes the host wait"
            ) from error
        except RuntimeError as error:
            if not any(map(_of_host, _leaves(args, named))):
                raise
            raise DeviceMixture(_mixture(func, args, named)) from error

    def _recipe(self, func: Any, args: tuple[Any, ...], before: Any, out: Any) -> Callable[..., Any] | None:
        """Return a function that repeats a result without torch's slow rules; None if it could be wrong."""
        schema = func._schema
        if func in INVERSES:
            return None
        if func.is_view:
            return self._view
        if schema.is_mutable:
            changed = [a for a in schema.arguments if a.alias_info]
            own = out is args[0] and _outline(out) == before and len(changed) == 1
            return (lambda func, args, named: args[0]) if own else None
        outputs = [out] if isinstance(out, Tensor) else out
        if any(r.alias_info for r in schema.returns) or not isinstance(outputs, list | tuple):
            return None
        if not all(isinstance(x, FakeTensor) and x.device == DEVICE and not x.storage_offset() for x in outputs):
            return None
        outlines = [(tuple(x.shape), x.stride(), x.dtype) for x in outputs]
        kind = type(out) if isinstance(out, list | tuple) else None

        def again(func: Any, args: Any, named: Any) -> Any:
            tensors = [self._new(torch.empty_strided(s, t, dtype=d, device=META)) for s, t, d in outlines]
            return kind(tensors) if kind else tensors[0]

        return again

    def _view(self, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        with as_meta(self.fake):
            out = func(*args, **named)
        return self._new(out) if isinstance(out, Tensor) else [self._new(part) for part in out]

    def _new(self, outline: Tensor) -> FakeTensor:
        return FakeTensor(self.fake, outline, DEVICE)

    # Between host and device ----------------------------------------------------------------------------------

    def _arrive(self, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Make a tensor on the device, or move it there."""
        if func is aten._to_copy.default and not args[0].is_meta:
            self.ledger.note("to device", "to", size_of(args[0]))
        rest = {name: value for name, value in named.items() if name != "pin_memory"}
        out = self._new(func(*args, **rest | {"device": META}))
        keep_values(func, args, rest, args, out)
        return out

    def _leave(self, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Copy a tensor to the host, or make one there in the likeness of one on the device."""
        x = args[0]
        if func is aten._to_copy.default:
            self.ledger.note("to host", "to", size_of(x))
            return signed(answer(x, named.get("dtype")), left=True)
        return func(*tree_map_only(FakeTensor, lambda t: torch.empty(t.shape, dtype=t.dtype), args), **named)

    def _copy(self, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        into, source = args[:2]
        if not isinstance(into, FakeTensor):
            self.ledger.note("to host", "copy_", size_of(into))
            return signed(into.copy_(answer(source, into.dtype)), left=True)
        if not isinstance(source, FakeTensor):
            self.ledger.note("to device", "copy_", size_of(source))
        if source.shape != into.shape:
            source.expand(into.shape)  # or raise
        return into

    # What the host waits for ----------------------------------------------------------------------------------

    def _number(self, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> float | int | bool:
        x = args[0]
        self.ledger.note("wait", "item", x.element_size())
        return answer(x).item()

    def _equal(self, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> bool:
        if not all(isinstance(x, FakeTensor) for x in args):
            raise DeviceMixture(_mixture(func, args, named))
        self.ledger.note("wait", "equal", 1)
        return bool(args[0].shape == args[1].shape)

    def _nonzero(self, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> FakeTensor:
        self.ledger.note("wait", "nonzero", 8)
        return self._new(torch.empty(_kept(args[0]), args[0].dim(), dtype=torch.long, device=META))

    def _chosen(self, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> FakeTensor:
        self.ledger.note("wait", "masked_select", 8)
        return self._new(torch.empty(_kept(args[1]), dtype=args[0].dtype, device=META))

    def _index(self, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Index a tensor. A mask becomes a list of places, and the host waits for the device to learn their number."""
        places: list[Any] = []
        for x in args[1]:
            if isinstance(x, Tensor) and x.dtype == torch.bool:
                if isinstance(x, FakeTensor):
                    self.ledger.note("wait", "mask", 8)
                places += [self._new(torch.empty(_kept(x), dtype=torch.long, device=META))] * x.dim()
            else:
                if _of_host(x):
                    self.ledger.note("to device", "index", size_of(x))
                places.append(x)
        indexed = (args[0], places, *args[2:])
        return self._compute(func, indexed, named, _leaves(indexed, named))


def _leaves(args: Sequence[Any], named: Mapping[str, Any] = MappingProxyType({})) -> list[Any]:
    """Return the values inside nested lists and tuples. torch's own function knows more containers and takes longer."""
    leaves: list[Any] = []
    for x in (*args, *named.values()):
        if isinstance(x, list | tuple):
            leaves += _leaves(x)
        else:
            leaves.append(x)
    return leaves


def _lengths(args: Sequence[Any]) -> list[int]:
    """Return the length of each argument that is a list or tuple, else -1. It tells which leaves belong together."""
    return [len(x) if isinstance(x, list | tuple) else -1 for x in args]


def _kept(mask: Tensor) -> int:
    """Return the number of rows that a mask keeps. Without values it keeps all, and its inverse none."""
    values = mask if not isinstance(mask, FakeTensor) else values_of(mask)
    if values is not None:
        return int(values.count_nonzero())
    return 0 if getattr(mask, "inverted", False) else mask.numel()


def _of_host(x: Any) -> bool:
    """Return whether a value is a tensor of the host that must not meet one of the device.

    Tensors of a single number may.
    """
    return isinstance(x, Tensor) and not isinstance(x, FakeTensor) and x.dim() > 0


def _device(x: Any) -> torch.device | None:
    """Return a device without its index, or None if the value is no device."""
    if not isinstance(x, torch.device):
        return None
    return DEVICE if x.type == DEVICE.type else HOST if x.type == HOST.type else x


def _outline(x: Any) -> Any:
    """Return everything about a value that the size of a result can depend on."""
    if isinstance(x, Tensor):
        return isinstance(x, FakeTensor), x.shape, x.stride(), x.dtype
    return type(x), x


def _mixture(func: Any, args: Any, named: Any) -> str:
    tensors = [described(x) for x in _leaves(args, named) if isinstance(x, Tensor)]
    return f"{here()}: {func} was given {' and '.join(tensors)}; move one of them with .to(device)"
