"""Sequence parallelism by Ulysses: each process holds some tokens of a video, and attention sees all tokens.

Before attention, the processes exchange tokens for heads, so that each holds all tokens of some heads. After attention
they exchange them back. In the backward pass each exchange has its true adjoint. So every process computes the same
loss, and the mean of the processes' gradients is the gradient.
"""

import torch
import torch.distributed._functional_collectives as functional
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.functional import pad

RING, ULYSSES = "ring", "ulysses"


class SequenceParallel:
    """The messages between processes that share a video. A model's `share_sequence` adds calls of them to its network.

    Tensors of attention are (B, tokens, heads, D).
    """

    def __init__(self, mesh: DeviceMesh, shared: DeviceMesh, device: torch.device) -> None:
        self.mesh, self.device = mesh, device  # the mesh has the axes that diffusers looks for: ring and ulysses
        self.ring, self.ulysses = mesh[RING].size(), mesh[ULYSSES].size()
        self.group, self.size, self.rank = shared.get_group(), shared.size(), shared.get_local_rank()
        self.lengths: list[int] = []  # tokens of each process, as they were last cut

    def shard(self, x: Tensor, dim: int) -> Tensor:
        """Return this process's part of `x`, cut along the axis `dim` of tokens.

        If the tokens do not divide evenly, the first processes get one token more.
        """
        parts = x.tensor_split(self.size, dim)
        self.lengths = [part.shape[dim] for part in parts]
        return parts[self.rank]

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        """Return the parts `x` of all processes, concatenated along `dim`; the same on every process.

        The parts must be as long as those of the last `shard`.
        """
        longest = max(self.lengths)
        padded = pad(x, [0, 0] * (x.ndim - 1 - dim) + [0, longest - x.shape[dim]])
        parts = torch.split(self.gather_equal(padded, dim), longest, dim)
        return torch.cat([part.narrow(dim, 0, n) for part, n in zip(parts, self.lengths, strict=True)], dim)

    def seq_to_head(self, x: Tensor) -> Tensor:
        """Exchange some tokens of all heads for all tokens of some heads.

        (B, local tokens, heads, D) → (B, tokens, local heads, D).
        """
        batch, count, heads, width = x.shape
        sent = x.reshape(batch, count, self.size, heads // self.size, width).permute(2, 1, 0, 3, 4).flatten(0, 1)
        return self._trade(sent, [count] * self.size, self.lengths).transpose(0, 1)

    def head_to_seq(self, x: Tensor) -> Tensor:
        """Exchange all tokens of some heads for some tokens of all heads: the inverse of `seq_to_head`.

        (B, tokens, local heads, D) → (B, local tokens, heads, D).
        """
        count = self.lengths[self.rank]
        received = self._trade(x.transpose(0, 1), self.lengths, [count] * self.size)
        return received.view(self.size, count, *received.shape[1:]).permute(2, 1, 0, 3, 4).flatten(2, 3)

    def local_heads(self, x: Tensor) -> Tensor:
        """Return this process's heads (B, tokens, local heads, D) of tokens that all processes hold, such as text.

        `x` is (B, tokens, heads, D).
        """
        return x.chunk(self.size, dim=2)[self.rank]

    def gather_heads(self, x: Tensor) -> Tensor:
        """Return the heads of all processes (B, tokens, heads, D), from those of each: the inverse of `local_heads`."""
        return self.gather_equal(x, 2)

    def _trade(self, x: Tensor, sent: list[int], received: list[int]) -> Tensor:
        return _arrived(functional.all_to_all_single(x.contiguous(), received, sent, self.group))

    def gather_equal(self, x: Tensor, dim: int) -> Tensor:
        """Return the `x` of all processes, concatenated along `dim`. Each `x` must have the same shape."""
        return _arrived(functional.all_gather_single_autograd(x.contiguous(), dim, self.group))


def _arrived(x: Tensor) -> Tensor:
    here: Tensor = functional.wait_tensor(x)  # type: ignore[no-untyped-call]
    return here
