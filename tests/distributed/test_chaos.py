"""A few kills in CI; `make chaos KILLS=30` for many."""

import random

import pytest
import torch

from distributed.chaos import run

pytestmark = pytest.mark.slow


def test_killed_processes_come_back_and_end_bit_equal(tmp_path):
    whole, killed, done = run(tmp_path, 2, 6, random.Random(3))
    assert done.total() == 2
    assert {"save", "rename"} & set(done)
    assert all(torch.equal(whole[name], killed[name]) for name in whole)
