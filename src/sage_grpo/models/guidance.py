"""Two passes of guidance, and their way back."""

import torch
from torch import Tensor


def in_turn(v: Tensor) -> Tensor:
    """The same values, with a backward pass of their own that runs as soon as their gradient is known.

    A weight that two passes share gets its gradient when both have come back. Until then the gradients of one wait, of
    all weights and unsharded; one after the other they do not.
    """
    if not v.requires_grad:
        return v
    apart = v.detach().requires_grad_()
    apart.register_hook(lambda gradient: torch.autograd.backward(v, gradient))  # type: ignore[no-untyped-call]
    return apart
