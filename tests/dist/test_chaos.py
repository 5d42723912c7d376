"""Two kills of a random process in CI; `make chaos-processes KILLS=30` for many."""

import random

import torch

from dist.chaos import run


def test_killed_processes_come_back_and_end_bit_equal(tmp_path):
    whole, killed, done = run(tmp_path, 2, 12, random.Random(0))
    assert done == 2
    assert all(torch.equal(whole[name], killed[name]) for name in whole)
