"""Backward passes of the two branches of guidance, one after the other."""

import torch
from torch import Tensor


def in_turn(v: Tensor) -> Tensor:
    """Return the same values, with a backward pass of their own that runs as soon as their gradient is known.

    A weight that two passes share gets its gradient when both backward passes are done. Until then the gradients of one
    pass wait, for all weights and unsharded. If the passes run one after the other, they do not wait.
    """
    if not v.requires_grad:
        return v
    apart = v.detach().requires_grad_()
    apart.register_hook(lambda gradient: torch.autograd.backward(v, gradient))  # type: ignore[no-untyped-call]
    return apart
