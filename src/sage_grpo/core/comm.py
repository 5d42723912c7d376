"""The messages between the processes of a run: what the algorithm asks of them, and those of a single process."""

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, nn


class SequenceParallel(Protocol):
    """The messages between processes that share a video, each with a part of its tokens or attention heads."""

    @property
    def size(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def ring(self) -> int: ...  # processes in a ring; the others trade heads
    @property
    def ulysses(self) -> int: ...
    @property
    def mesh(self) -> Any: ...  # of those two axes, for diffusers
    @property
    def device(self) -> torch.device: ...
    def shard(self, x: Tensor, dim: int) -> Tensor: ...
    def all_gather(self, x: Tensor, dim: int) -> Tensor: ...
    def gather_equal(self, x: Tensor, dim: int) -> Tensor: ...  # the same of parts that are equally long
    def seq_to_head(self, x: Tensor) -> Tensor: ...
    def head_to_seq(self, x: Tensor) -> Tensor: ...
    def local_heads(self, x: Tensor) -> Tensor: ...
    def gather_heads(self, x: Tensor) -> Tensor: ...


class Comm(Protocol):
    """The messages between the processes of a run.

    No other part of the algorithm may depend on the number of processes.
    """

    @property
    def replica(self) -> int:
        """Index of the replica that this process belongs to."""
        ...

    @property
    def num_replicas(self) -> int:
        """Number of replicas. A replica makes its own videos; it is one process, or several that share each video."""
        ...

    @property
    def sp_size(self) -> int:
        """Number of processes that share a video (sequence parallelism)."""
        ...

    @property
    def sp_rank(self) -> int:
        """Index of this process among those that share its video."""
        ...

    def sum_sp(self, x: Tensor) -> Tensor:
        """Return the sum of `x` over the processes that share a video.

        Each process fills in its own part of `x` and zeros elsewhere, so that the sum is complete.
        """
        ...

    def gather(self, x: Tensor) -> Tensor:
        """Concatenate the `x` of all replicas along the first axis, in replica order. All get the same result."""
        ...

    def mean(self, x: Tensor) -> Tensor:
        """Return the mean of `x` over all replicas. All get the same result."""
        ...

    def broadcast(self, x: Tensor, replica: int) -> Tensor:
        """Return the `x` of replica number `replica` on all replicas. They must pass tensors of the same shape."""
        ...

    def set_last_backward(self, module: nn.Module, *, last: bool) -> None:
        """Announce whether the next backward pass is the last one of an optimizer update.

        Gradients need only be summed over the processes' copies of the weights in the last pass.
        """
        ...

    def clip_grad_norm(self, parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
        """Scale the gradients down to a norm of at most `limit`, and return the norm before scaling, over all ranks."""
        ...


class SingleProcess:
    """The `Comm` of a run with a single process."""

    replica, num_replicas, sp_rank, sp_size = 0, 1, 0, 1

    def sum_sp(self, x: Tensor) -> Tensor:
        return x

    def gather(self, x: Tensor) -> Tensor:
        return x

    def mean(self, x: Tensor) -> Tensor:
        return x

    def broadcast(self, x: Tensor, replica: int) -> Tensor:
        return x

    def set_last_backward(self, module: nn.Module, *, last: bool) -> None:
        pass

    def clip_grad_norm(self, parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
        return torch.nn.utils.clip_grad_norm_(parameters, limit)
