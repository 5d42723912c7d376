"""A recorder of the attention kernels that really run, observed in a run's first forward pass instead of read from
its settings."""

# mypy: disable-error-code="no-untyped-call"
import math
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from sage_grpo.core.video_model import networks

KERNELS = {  # by a part of an operation's name
    "cudnn_attention": "cuDNN",
    "efficient_attention": "memory-efficient",
    "flash_attention": "FlashAttention 2, of torch",
    "flash_attn_3": "FlashAttention 3",
    "flash_attn": "FlashAttention 2, of flash-attn",
    "attention_math": "math",
}


def kernel_named(operation: str) -> str | None:
    """Return the name of the attention kernel behind a torch operation; None if the operation is no attention kernel.

    For example, `aten._scaled_dot_product_flash_attention` is "FlashAttention 2, of torch".
    """
    found = next((kernel for part, kernel in KERNELS.items() if part in operation), None)
    return "torch's kernel for CPUs" if found and operation.endswith("for_cpu") else found


class AttentionWatch(TorchDispatchMode):
    """A torch dispatch mode that records which attention kernels run inside it.

    `seen` has the shape of the largest query per kernel, such as (batch, heads, tokens, width).
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, tuple[int, ...]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (kernel := kernel_named(f"{func.namespace}.{func._overloadpacket.__name__}")) and args:
            self.seen[kernel] = max(self.seen.get(kernel, (0,)), tuple(args[0].shape), key=math.prod)
        return func(*args, **(kwargs or {}))

    @property
    def sentence(self) -> str:
        parts = [f"{kernel} at {' × '.join(map(str, shape))}" for kernel, shape in self.seen.items()]
        return f"attention runs by {', '.join(parts) or 'plain products, without a fused kernel'}"


def watch_first_pass(module: nn.Module, emit: Callable[[str], None]) -> None:
    """Record the attention kernels of the next forward pass of `module`, and call `emit` with a sentence about them.

    The hooks for this are removed after that pass, so that later passes are not slower.
    """
    hooks: list[Any] = []
    watch = AttentionWatch()

    def before(part: nn.Module, inputs: Any) -> None:
        watch.__enter__()

    def after(part: nn.Module, inputs: Any, output: Any) -> None:
        watch.__exit__(None, None, None)
        for hook in hooks:
            hook.remove()
        emit(watch.sentence)

    for part in networks(module).values():
        hooks.append(part.register_forward_pre_hook(before))
        hooks.append(part.register_forward_hook(after, always_call=True))
