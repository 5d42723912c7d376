"""A test of attention kernels: whether each gives the same bits with and without gradient, and how long it takes.

If the bits differ, a rollout may serve only one update (docs/models.md, "Checks before the first update").
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from sage_grpo.distributed.device import HOST, median_seconds
from sage_grpo.models.attention import attend

SHAPE, SMALL = (1, 16, 20003, 128), (1, 2, 515, 32)  # batch, heads, tokens, width; the small one is for the host
CHOSEN = "torch's choice"
KERNELS: Mapping[str, SDPBackend | None] = {
    CHOSEN: None,
    "flash": SDPBackend.FLASH_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
}
PACKAGES = {"flash-attn": "flash", "FlashAttention 3": "_flash_3"}  # kernels of other packages, by diffusers' name
SETTINGS = {  # what to write as tuning.attention
    "flash": "_native_flash",
    "memory-efficient": "_native_efficient",
    "cuDNN": "_native_cudnn",
    **PACKAGES,
}
WORTH = 0.95  # of the time of torch's choice: less of a gain is not worth a setting
Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


def native(kernel: SDPBackend | None, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    with sdpa_kernel(kernel) if kernel is not None else nullcontext():
        return scaled_dot_product_attention(query, key, value, attn_mask=mask)


def attention_report(device: torch.device, shape: Sequence[int] = ()) -> list[dict[str, Any]]:
    """Test each attention kernel with and without a mask of the keys, and return one row per test.

    A row has the kernel's name, whether there was a mask, the shape, and the results of `compare`. `shape` is (batch,
    heads, tokens, width) of the recipe, or empty for a usual one. On the CPU a small shape is tested in its place.
    """
    size = SMALL if device == HOST else tuple(shape) or SHAPE
    draw = torch.Generator(device).manual_seed(0)
    q, k, v = (torch.randn(size, generator=draw, device=device).bfloat16() for _ in "qkv")
    mask = torch.ones(1, 1, 1, size[2], dtype=torch.bool, device=device)
    mask[..., -7:] = False
    kernels: dict[str, Attend] = {name: partial(native, kernel) for name, kernel in KERNELS.items()}
    if device != HOST:  # those of other packages are for GPUs
        kernels |= {name: partial(attend, backend) for name, backend in PACKAGES.items()}
    return [
        {"kernel": name, "mask": masked, "shape": list(size), **compare(kernel, q, k, v, mask if masked else None)}
        for name, kernel in kernels.items()
        for masked in (False, True)
    ]


def compare(kernel: Attend, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> dict[str, Any]:
    """Return whether a kernel gives the same bits with and without gradient, and the median seconds of a call.

    `q`, `k` and `v` are (batch, heads, tokens, width).

    Returns:
        `equal`: whether the bits with and without gradient are the same; None if the kernel does not accept these
        tensors, with the reason as `why`. `steady`: whether two calls without gradient give the same bits. `deviation`:
        relative difference with and without gradient. `seconds`: of a `forward` pass, and of forward and backward
        together (`training`).
    """

    def ask(gradient: bool) -> Tensor:
        query, key, value = (x.detach().requires_grad_(gradient) for x in (q, k, v))
        return kernel(query, key, value, mask).detach()

    def forward() -> None:
        with torch.no_grad():
            kernel(q, k, v, mask)

    def training() -> None:
        query, key, value = (x.detach().requires_grad_() for x in (q, k, v))
        torch.autograd.grad(kernel(query, key, value, mask).sum(), (query, key, value))

    try:
        without, again, gradient = ask(False), ask(False), ask(True)
        seconds = {"forward": median_seconds(forward, q.device), "training": median_seconds(training, q.device)}
    except RuntimeError as error:
        return {"equal": None, "why": str(error).splitlines()[0][:120]}
    off = ((gradient - without).float().norm() / without.float().norm()).item()
    same = {"equal": torch.equal(without, gradient), "steady": torch.equal(without, again)}
    return {**same, "deviation": off, "seconds": seconds}


def fastest(rows: Sequence[Mapping[str, Any]], *, mask: bool = False) -> str | None:
    """Return the value of `tuning.attention` for the kernel that trains fastest, among rows with or without a `mask`.

    Return None if no kernel takes less than 95 % of the time of torch's own choice. If the bits of torch's choice are
    equal with and without gradient, those of the returned kernel are too.
    """
    times = {row["kernel"]: row["seconds"]["training"] for row in rows if row["mask"] == mask and row.get("seconds")}
    bits = {row["kernel"]: row["equal"] for row in rows if row["mask"] == mask}
    if CHOSEN not in times:
        return None
    allowed = {name: time for name, time in times.items() if bits[name] or not bits[CHOSEN]}
    best = min(allowed, key=allowed.__getitem__)
    return SETTINGS[best] if best != CHOSEN and times[best] < WORTH * times[CHOSEN] else None
