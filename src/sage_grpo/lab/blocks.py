"""The transformer block that the laboratory's networks are made of."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sage_grpo.core.comm import SequenceParallel


class Block(nn.Module):
    """A transformer block on tokens (B, tokens, width): attention and an MLP.

    Each of the two gets its shift, scale and gate from a modulation (B, 6, width).
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.sp: SequenceParallel | None = None  # with the processes that share a clip
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))
        self.table = nn.Parameter(torch.randn(6, width) / width**0.5)

    def forward(self, x: Tensor, modulation: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = (modulation + self.table).unbind(1)
        h = self.norm1(x) * (1 + scale1[:, None]) + shift1[:, None]
        x = x + gate1[:, None] * self.proj(self.attend(*self.qkv(h).unflatten(2, (3, self.heads, -1)).unbind(2)))
        h = self.norm2(x) * (1 + scale2[:, None]) + shift2[:, None]
        out: Tensor = x + gate2[:, None] * self.mlp(h)
        return out

    def attend(self, *qkv: Tensor) -> Tensor:
        if self.sp:
            qkv = tuple(self.sp.seq_to_head(x) for x in qkv)
        q, k, v = (x.transpose(1, 2) for x in qkv)
        h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        return (self.sp.head_to_seq(h) if self.sp else h).flatten(2)
