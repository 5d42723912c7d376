"""A way to run the backward passes of the two branches of guidance one after the other, which saves memory."""

import torch
from torch import Tensor


def in_turn(v: Tensor) -> Tensor:
    """Return the velocity `v` of one branch with a backward pass of its own, run once the gradient of `v` is known.

    The two branches of guidance are two forward passes through the same weights. One backward pass over both gives a
    weight its gradient only when both are done. Until then the gradients of one branch wait in memory, for all weights
    and unsharded. With a backward pass of its own per branch, they do not wait.
    """
    if not v.requires_grad:
        return v
    apart = v.detach().requires_grad_()
    apart.register_hook(lambda gradient: torch.autograd.backward(v, gradient))  # type: ignore[no-untyped-call]
    return apart
