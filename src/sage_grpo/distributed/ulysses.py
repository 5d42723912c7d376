"""Sequence parallelism by Ulysses: each process holds some tokens of a video, and all of them meet in attention.

For attention every process trades its tokens' other heads for the other tokens of its own heads, and back. All trades
have their true adjoints: each process computes the same loss, and the mean of their gradients is the gradient.
"""

import torch
import torch.distributed._functional_collectives as functional
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.functional import pad

RING, ULYSSES = "ring", "ulysses"


class SequenceParallel:
    """The messages between processes that share a video. A model's `share_sequence` puts these calls in their places.

    Tensors of attention are (B, tokens, heads, D).
    """

    def __init__(self, mesh: DeviceMesh, shared: DeviceMesh, device: torch.device) -> None:
        self.mesh, self.device = mesh, device  # the mesh has the axes that diffusers looks for: ring and ulysses
        self.ring, self.ulysses = mesh[RING].size(), mesh[ULYSSES].size()
        self.group, self.size, self.rank = shared.get_group(), shared.size(), shared.get_local_rank()
        self.lengths: list[int] = []  # tokens of each process, as they were last cut

    def shard(self, x: Tensor, dim: int) -> Tensor:
        """Return this process's tokens of `x` along `dim`. Where they do not divide, the first few get one more."""
        parts = x.tensor_split(self.size, dim)
        self.lengths = [part.shape[dim] for part in parts]
        return parts[self.rank]

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        """Return the tokens of all processes, concatenated along `dim`; the same on every process."""
        longest = max(self.lengths)
        padded = pad(x, [0, 0] * (x.ndim - 1 - dim) + [0, longest - x.shape[dim]])
        parts = torch.split(self.gather_equal(padded, dim), longest, dim)
        return torch.cat([part.narrow(dim, 0, n) for part, n in zip(parts, self.lengths, strict=True)], dim)

    def seq_to_head(self, x: Tensor) -> Tensor:
        """Trade tokens for heads: (B, local tokens, heads, D) → (B, tokens, local heads, D)."""
        batch, count, heads, width = x.shape
        sent = x.reshape(batch, count, self.size, heads // self.size, width).permute(2, 1, 0, 3, 4).flatten(0, 1)
        return self._trade(sent, [count] * self.size, self.lengths).transpose(0, 1)

    def head_to_seq(self, x: Tensor) -> Tensor:
        """Trade heads for tokens: (B, tokens, local heads, D) → (B, local tokens, heads, D)."""
        count = self.lengths[self.rank]
        received = self._trade(x.transpose(0, 1), self.lengths, [count] * self.size)
        return received.view(self.size, count, *received.shape[1:]).permute(2, 1, 0, 3, 4).flatten(2, 3)

    def local_heads(self, x: Tensor) -> Tensor:
        """Return the local heads (B, tokens, local heads, D) of tokens that all processes hold, such as text."""
        return x.chunk(self.size, dim=2)[self.rank]

    def gather_heads(self, x: Tensor) -> Tensor:
        """Return all heads (B, tokens, heads, D): the inverse of `local_heads`."""
        return self.gather_equal(x, 2)

    def _trade(self, x: Tensor, sent: list[int], received: list[int]) -> Tensor:
        return _arrived(functional.all_to_all_single(x.contiguous(), received, sent, self.group))

    def gather_equal(self, x: Tensor, dim: int) -> Tensor:
        """Return the parts of all processes, concatenated along `dim`. All must be equally long."""
        return _arrived(functional.all_gather_single_autograd(x.contiguous(), dim, self.group))


def _arrived(x: Tensor) -> Tensor:
    here: Tensor = functional.wait_tensor(x)  # type: ignore[no-untyped-call]
    return here
