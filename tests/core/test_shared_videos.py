"""What processes have in common they do once: videos that they share, and samples that all of them could make."""

import pytest
import torch

from sage_grpo.core.comm import SingleProcess
from sage_grpo.core.protocols import Videos
from sage_grpo.core.sampler import gather_videos, rank_indices
from support import FunctionReward, Rank, make_config, make_loop, mean_brightness


@pytest.mark.parametrize("sharers", [1, 2, 3, 8])
@pytest.mark.parametrize(("groupwise", "batch"), [(False, 1), (False, 4), (True, 2), (True, 8)])
def test_a_shared_video_is_decoded_and_scored_once(groupwise, batch, sharers):
    reward = FunctionReward(mean_brightness)
    reward.groupwise = groupwise
    config = make_config(policy={"prompts_per_iteration": 2, "num_generations": 4, "batch_size": batch})
    alone, _ = make_loop(config, reward=reward)
    expected, _ = alone.score(alone.rollout())
    total, claims, most = torch.zeros_like(expected), torch.zeros(8), 0
    for place in range(sharers):
        loop, _ = make_loop(config, reward=reward, comm=Rank(0, 1, place, sharers))
        rollouts = loop.rollout()
        own = sum(map(len, rollouts.videos))
        scores, valid = loop.score(rollouts)
        assert int(valid.sum()) == own
        assert torch.equal(scores != 0, valid)
        total, claims, most = total + scores, claims + valid[:, 0], max(most, own)
    assert torch.equal(total, expected)
    assert torch.equal(claims, torch.ones(8))
    unit = 4 if groupwise else 1
    assert most == -(-8 // unit // sharers) * unit  # and no process does more than its part


@pytest.mark.parametrize(("count", "world"), [(4, 1), (4, 2), (5, 2), (3, 8)])
def test_samples_are_dealt_out(count, world):
    """As many passes on every rank, and each video from one of them."""
    hands = [rank_indices(count, Rank(rank, world)) for rank in range(world)]
    assert {len(hand) for hand in hands} == {-(-count // world)}
    made = [Videos(torch.tensor(hand)[:, None], 24.0, torch.tensor(hand)[:, None] * 10.0) for hand in hands]

    class Told(SingleProcess):
        """Knows what the others hold."""

        def __init__(self):
            self.num_replicas = world

        def broadcast(self, x, replica):
            own = made[0].frames if x.dtype == torch.int64 else made[0].sound
            theirs = made[replica].frames if x.dtype == torch.int64 else made[replica].sound
            return theirs[int((own == x).nonzero()[0, 0])]

    videos = gather_videos(made[0], count, Told(), keep=True)
    assert videos.frames.flatten().tolist() == list(range(count))
    assert videos.sound.flatten().tolist() == [10.0 * i for i in range(count)]
    assert gather_videos(made[0], count, Told(), keep=False) is None
