"""A counter of what a piece of a program does: operations with their floating-point work, memory, and messages.

It works the same on tensors without values, for a plan, and on real ones.
"""

# mypy: disable-error-code="no-untyped-call"
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import flop_counter
from torch.utils._python_dispatch import TorchDispatchMode

aten: Any = torch.ops.aten
Kind = Literal["matrices", "attention", "convolutions", "elementwise"]


class Operation(NamedTuple):
    flops: float
    moved: float  # bytes read and written
    kind: Kind


MESSAGES = {  # by what a collective is called, in FSDP2 and in functional collectives
    "_allgather_base_": "weights",
    "_reduce_scatter_base_": "gradients",
    "allreduce_": "sums over copies",
    "all_to_all_single": "tokens",
    "all_gather_into_tensor": "tokens",
    "reduce_scatter_tensor": "tokens",
    "all_reduce": "tokens",
}


def flops(func: Any, args: Any, kwargs: Any, out: Any) -> float:
    """Return the number of floating-point operations in one call of an operator, by the formulas of torch.

    torch has none for the attention kernel of the CPU, which is added here. Operators without a formula count as 0.
    """
    kind = func._overloadpacket
    if kind is aten._scaled_dot_product_flash_attention_for_cpu:
        return float(flop_counter.sdpa_flop_count(*(x.shape for x in args[:3])))
    if kind is aten._scaled_dot_product_flash_attention_for_cpu_backward:
        return float(flop_counter.sdpa_backward_flop_count(*(x.shape for x in args[:4])))
    formula = flop_counter.flop_registry.get(kind)
    return float(formula(*args, **kwargs, out_val=out)) if formula else 0.0


def kind_of(func: Any, work: float) -> Kind:
    """Return the kind of an operator that does `work` floating-point operations; `elementwise` if it does none.

    Kernels of each kind reach a different share of a GPU's peak.
    """
    if not work:
        return "elementwise"
    name = func._overloadpacket.__name__
    return "attention" if "attention" in name else "convolutions" if "convolution" in name else "matrices"


def tensors(values: Any) -> Iterator[Tensor]:
    """Yield the tensors in an operator's arguments or results, also inside lists, tuples and dicts.

    This is faster than torch's own functions for nested values.
    """
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from tensors(value)
    elif isinstance(values, dict):
        yield from tensors(list(values.values()))


def sizes(values: Any) -> list[int]:
    return [x.numel() * x.element_size() for x in tensors(values)]


class OperationCounter(TorchDispatchMode):
    """A context that counts the operations inside its block by cost, messages by purpose, and the peak of memory.

    The peak is in bytes, and only counts what is allocated inside the block.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[Operation] = Counter()
        self.sent: Counter[str] = Counter()  # bytes of the whole that a message is a part of
        self.messages: Counter[str] = Counter()
        self.peak = 0
        self.largest = 0  # elements that a convolution reads or writes
        self.attention: tuple[int, ...] = ()  # of the largest query: batch, heads, tokens, width
        self._now = 0
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

    def __enter__(self) -> "OperationCounter":
        self._resize = resize = torch.UntypedStorage.resize_

        def resized(storage: torch.UntypedStorage, size: int) -> Any:  # how FSDP2 frees gathered weights
            out = resize(storage, size)
            self._note(storage)
            return out

        torch.UntypedStorage.resize_ = resized  # type: ignore[method-assign, assignment]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func.namespace in ("prim", "profiler"):  # a tensor is asked for its device more often than all else
            return out
        input_storages = {x.untyped_storage()._cdata for x in tensors((args, kwargs))}
        for x in tensors(out):
            storage = x.untyped_storage()
            if storage._cdata in self._live or storage._cdata not in input_storages:  # else it was there before
                self._note(storage)
        if func.namespace in ("c10d", "_c10d_functional"):
            if purpose := MESSAGES.get(func._overloadpacket.__name__):
                self.sent[purpose] += max(sizes((args, out)))
                self.messages[purpose] += 1
        elif not func.is_view:
            if func._overloadpacket is aten.convolution:
                self.largest = max(self.largest, args[0].numel(), out.numel())
            moved = sum(sizes((args, kwargs, out)))
            work = flops(func, args, kwargs, out)
            kind = kind_of(func, work)
            if kind == "attention":
                self.attention = max(self.attention, tuple(args[0].shape), key=math.prod)
            self.operations[Operation(work, float(moved), kind)] += 1
        return out

    def _note(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        known = self._live.get(key)
        if known is None or known[0].expired():
            self._live[key] = StorageWeakRef(storage), size
        else:
            self._live[key] = known[0], size
        self._now += size - (known[1] if known else 0)
        if self._now > self.peak:
            for gone in [key for key, (reference, _) in self._live.items() if reference.expired()]:
                self._now -= self._live.pop(gone)[1]
            self.peak = max(self.peak, self._now)
