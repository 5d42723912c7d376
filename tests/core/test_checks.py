"""A deviation that one process alone sees stops all of them."""

import math

import pytest
import torch

from sage_grpo.core.checks import _worst
from sage_grpo.core.comm import SingleProcess


class Four(SingleProcess):
    """Two replicas of two processes; `seen` (2, 2) is what each of them found. This is one of them."""

    sp_size = 2

    def __init__(self, seen, replica, sp_rank):
        self.seen, self.replica, self.sp_rank = torch.tensor(seen, dtype=torch.float64), replica, sp_rank

    def sum_sp(self, x):
        assert x.nonzero().flatten().tolist() in ([self.sp_rank], [])  # its own part, zeros elsewhere
        return self.seen[self.replica]

    def gather(self, x):
        return torch.cat([x if replica == self.replica else row for replica, row in enumerate(self.seen)])


@pytest.mark.parametrize("place", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("value", [0.5, math.nan])
def test_the_worst_of_all_processes(place, value):
    seen = [[0.0, 0.0], [0.0, 0.0]]
    seen[place[0]][place[1]] = value
    for replica in range(2):
        for sp_rank in range(2):
            found = _worst(torch.tensor(seen[replica][sp_rank]), Four(seen, replica, sp_rank))
            assert found == value or (math.isnan(found) and math.isnan(value))


def test_one_process_alone():
    assert _worst(torch.tensor(0.25), None) == 0.25
    assert _worst(torch.tensor(0.25), SingleProcess()) == 0.25
