"""The attention kernel of a run is seen in its first pass."""

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from sage_grpo.training.attention_watch import kernel_named, watch_first_pass


class Block(nn.Module):
    def forward(self, x):
        return scaled_dot_product_attention(x, x, x)


def test_the_first_pass_tells_and_later_ones_do_not():
    block, said = Block(), []
    watch_first_pass(block, said.append)
    x = torch.randn(2, 3, 16, 8)
    for _ in range(3):
        block(x)
    assert said == ["attention runs by torch's kernel for CPUs at 2 × 3 × 16 × 8"]
    assert not block._forward_hooks
    assert not block._forward_pre_hooks


def test_the_largest_query_is_told():
    """A short one of more videos does not hide the long one, whichever comes first."""
    both, said = nn.ModuleList([Block(), Block()]), []

    def forward(shapes):
        for block, shape in zip(both, shapes, strict=True):
            block(torch.randn(shape))

    both.forward = forward
    watch_first_pass(both, said.append)
    both([(2, 3, 64, 8), (4, 3, 8, 8)])
    assert said == ["attention runs by torch's kernel for CPUs at 2 × 3 × 64 × 8"]


def test_a_network_without_attention_and_one_that_fails():
    plain, said = nn.Linear(2, 2), []
    watch_first_pass(plain, said.append)
    plain(torch.zeros(1, 2))
    assert "plain products" in said[0]
    broken = nn.Linear(2, 2)
    watch_first_pass(broken, said.append)
    try:
        broken(torch.zeros(1, 3))
    except RuntimeError:
        said.append("raised")
    assert said[-1] == "raised"
    watched = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    assert not watched  # nothing stays on the stack of modes


def test_kernels_by_the_names_of_operations():
    names = {
        "aten._scaled_dot_product_cudnn_attention": "cuDNN",
        "aten._scaled_dot_product_efficient_attention": "memory-efficient",
        "aten._scaled_dot_product_flash_attention": "FlashAttention 2, of torch",
        "flash_attn_3.fwd": "FlashAttention 3",
        "flash_attn._flash_attn_forward": "FlashAttention 2, of flash-attn",
        "aten.mm": None,
    }
    assert {name: kernel_named(name) for name in names} == names
