"""Gradient checkpointing that keeps the outputs of attention kernels, which cost most to compute and least to hold.

torch has selective checkpointing of its own. It expects every operator of the forward pass again in the backward pass,
in the same number. Blocks that FSDP2 shards inside do not keep to that, because it gathers their weights differently.
"""

# mypy: disable-error-code="no-untyped-call"
import re
from collections import deque
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

KERNEL = re.compile(
    r"attention|attn|flash_fwd"
)  # in the names of torch's operators, and of those that FlashAttention registers


class Keep(TorchDispatchMode):
    """A context that appends the output of every attention kernel in its block to `kept`."""

    def __init__(self, kept: deque[tuple[Any, Any]]) -> None:
        super().__init__()
        self.kept = kept

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if KERNEL.search(str(func)):
            self.kept.append((func, tree_map(_detached, out)))
        return out


class Reuse(Keep):
    """A context that returns the outputs in `kept`, in their order, instead of running attention kernels."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not KERNEL.search(str(func)):
            return func(*args, **(kwargs or {}))
        kernel, out = self.kept.popleft() if self.kept else (None, None)
        if kernel is not func:
            raise RuntimeError(f"recomputation reached {func} where the forward pass ran {kernel}")
        return out


def _detached(x: Any) -> Any:
    return x.detach() if isinstance(x, Tensor) else x  # without the graph, which holds activations


def keep_attention() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Return two contexts for `torch.utils.checkpoint`: one for the forward pass, one for the recomputation."""
    kept: deque[tuple[Any, Any]] = deque()
    return Keep(kept), Reuse(kept)


def recompute_all_but_attention(block: nn.Module, *inputs: Any) -> Any:
    """Return the output of a block. Backward recomputes its activations, except the outputs of attention kernels."""
    return checkpoint(block.__call__, *inputs, use_reentrant=False, context_fn=keep_attention)
