"""A watch on the attention kernel that really runs: seen in a run's first pass, not read from its settings."""

# mypy: disable-error-code="no-untyped-call"
import math
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from sage_grpo.core.protocols import networks

KERNELS = {  # by a part of an operation's name
    "cudnn_attention": "cuDNN",
    "efficient_attention": "memory-efficient",
    "flash_attention": "FlashAttention 2, of torch",
    "flash_attn_3": "FlashAttention 3",
    "flash_attn": "FlashAttention 2, of flash-attn",
    "attention_math": "math",
}


def kernel_named(operation: str) -> str | None:
    """Return the name of the kernel behind an operation such as `aten._scaled_dot_product_flash_attention`, or None."""
    found = next((kernel for part, kernel in KERNELS.items() if part in operation), None)
    return "torch's kernel for CPUs" if found and operation.endswith("for_cpu") else found


class AttentionWatch(TorchDispatchMode):
    """A record of the attention kernels that run, with the largest query of each, (batch, heads, tokens, width)."""

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
    """Watch the first forward pass and `emit` a sentence about its attention kernels; later passes are not touched."""
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
