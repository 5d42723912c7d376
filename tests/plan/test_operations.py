"""Operations are counted alike on real tensors and on tensors without values."""

import torch
from torch import nn

from sage_grpo.preflight.plan.fake_tensors import without_values
from sage_grpo.preflight.plan.operations import OperationCounter


def count():
    layer, x = nn.Sequential(nn.Linear(64, 64), nn.SiLU(), nn.LayerNorm(64)), torch.zeros(32, 64)
    with OperationCounter() as watch:
        for _ in range(2):  # gradients add up
            if layer(x).device == x.device:  # a question is no work
                layer(x).square().mean().backward()
    return watch


def test_without_values_as_with_them():
    """A tensor without values answers in Python where it is: each answer was once counted as a reading of all of it."""
    real = count()
    with without_values():
        imagined = count()
    assert imagined.operations == real.operations
    assert imagined.peak == real.peak > 0


def test_bytes_and_flops_of_a_product():
    a, b = torch.zeros(3, 5), torch.zeros(5, 7)
    with OperationCounter() as watch:
        a @ b
    assert watch.operations == {(2.0 * 3 * 5 * 7, 4.0 * (3 * 5 + 5 * 7 + 3 * 7), "matrices"): 1}
    assert watch.peak == 4 * 3 * 7


def test_kinds_of_work():
    """Attention, convolutions and matrix products reach different shares of a GPU."""
    x, video, kernel = torch.zeros(1, 2, 16, 8), torch.zeros(1, 2, 3, 4, 4), torch.zeros(2, 2, 3, 3, 3)
    with OperationCounter() as watch:
        torch.nn.functional.scaled_dot_product_attention(x, x, x)
        torch.nn.functional.conv3d(video, kernel, padding=1)
        torch.nn.functional.linear(x, torch.zeros(8, 8))
        x + x
    assert watch.attention == (1, 2, 16, 8)
    kinds = {operation.kind for operation in watch.operations if operation.flops}
    assert kinds == {"attention", "convolutions", "matrices"}
    assert {operation.kind for operation in watch.operations if not operation.flops} == {"elementwise"}
