"""Whether attention gives the same bits with and without gradient, kernel by kernel, at the size of a video.

Where it does not, a rollout may serve only one update (docs/models.md, "Checks before the first update").
"""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from sage_grpo.distributed.device import HOST

SHAPE, SMALL = (1, 16, 20003, 128), (1, 2, 515, 32)  # batch, heads, tokens, width; the small one is for the host
KERNELS: Mapping[str, SDPBackend | None] = {
    "torch's choice": None,
    "flash": SDPBackend.FLASH_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
}


def attention_report(device: torch.device) -> list[dict[str, Any]]:
    """A row for each kernel, with and without a mask of the keys."""
    shape = SMALL if device == HOST else SHAPE
    draw = torch.Generator(device).manual_seed(0)
    q, k, v = (torch.randn(shape, generator=draw, device=device).bfloat16() for _ in "qkv")
    mask = torch.ones(1, 1, 1, shape[2], dtype=torch.bool, device=device)
    mask[..., -7:] = False
    return [
        {"kernel": name, "mask": masked, **compare(q, k, v, mask if masked else None, kernel)}
        for name, kernel in KERNELS.items()
        for masked in (False, True)
    ]


def compare(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, kernel: SDPBackend | None
) -> dict[str, Any]:
    """`equal` is none where the kernel does not take the question."""

    def ask(gradient: bool) -> torch.Tensor:
        query, key, value = (x.detach().requires_grad_(gradient) for x in (q, k, v))
        with sdpa_kernel(kernel) if kernel is not None else nullcontext():
            return scaled_dot_product_attention(query, key, value, attn_mask=mask).detach()

    try:
        without, again, gradient = ask(False), ask(False), ask(True)
    except RuntimeError as error:
        return {"equal": None, "why": str(error).splitlines()[0][:120]}
    off = ((gradient - without).float().norm() / without.float().norm()).item()
    return {"equal": torch.equal(without, gradient), "steady": torch.equal(without, again), "deviation": off}
