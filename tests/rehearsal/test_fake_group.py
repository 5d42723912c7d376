"""The first of several processes that do not exist."""

import torch

from sage_grpo.distributed.device import HOST
from sage_grpo.distributed.fake_group import first_of
from sage_grpo.distributed.processes import lay_out


def test_those_who_share_a_video_say_what_the_first_says():
    """One of four decodes and scores a quarter of the videos: a rehearsal must not take the others for failures."""
    with first_of(4):
        processes = lay_out(4, 4, 1, HOST)
        assert (processes.sp_size, processes.sp_rank) == (4, 0)
        valid, values = torch.zeros(8, 2).double(), torch.zeros(8, 2).double()
        valid[:2], values[:2] = 1.0, torch.tensor([[1.0, 2.0], [3.0, 4.0]]).double()
        assert processes.sum_sp(valid).all()
        assert torch.equal(processes.sum_sp(values), values[:2].repeat(4, 1))
        assert torch.equal(processes.sum_sp(torch.arange(3.0)), torch.arange(3.0))
        assert not processes.sum_sp(torch.zeros(8, 2)).any()
