"""Latents of several tensors and videos with sound: the algorithm sees one row of numbers, a reward hears."""

import pytest
import torch

pytest.importorskip("hypothesis")
from hypothesis import given
from hypothesis import strategies as st

from gaussian_model import GaussianModel
from sage_grpo.core.latents import LatentParts
from sage_grpo.core.protocols import Videos
from sage_grpo.core.reward import Reward
from sage_grpo.core.scores import Scores
from sage_grpo.rewards.function import CompositeReward
from support import make_config, make_loop, weights

shapes = st.dictionaries(
    st.text(min_size=1), st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple), min_size=1
)


@given(shapes, st.integers(1, 3))
def test_parts_come_back_as_they_were(shapes, batch):
    parts = LatentParts(shapes)
    given = {name: torch.randn(batch, *shape) for name, shape in shapes.items()}
    row = parts.pack(given)
    assert row.shape == (batch, *parts.shape)
    back = parts.unpack(row)
    assert list(back) == list(shapes)
    assert all(torch.equal(back[name], given[name]) for name in shapes)


class SoundingModel(GaussianModel):
    """Pictures of 2 × 2 pixels and a sound of four samples, one row of numbers to the algorithm."""

    parts = LatentParts({"video": (1, 3, 2, 2), "sound": (1, 4)})
    frame_rate = 24.0

    def __init__(self):
        super().__init__(self.parts.shape)

    def decode(self, x0):
        return super().decode(self.parts.unpack(x0)["video"])

    def render(self, x0):
        return Videos(self.decode(x0), self.frame_rate, self.parts.unpack(x0)["sound"].clamp(-1, 1), sample_rate=8)


class Loudness(Reward):
    names = ("loudness",)

    def __init__(self):
        self.heard = []

    def submit(self, videos, prompts):
        self.heard.append(videos)
        return lambda: Scores.of(videos.sound.double().flatten(1).mean(1, keepdim=True))


@pytest.mark.slow
def test_a_reward_hears_what_a_model_of_two_parts_makes_and_the_policy_learns_it():
    config = make_config(
        policy={"prompts_per_iteration": 2, "num_generations": 8, "batch_size": 4}, kl={"high": 0.0, "low": 0.0}
    )
    reward = Loudness()
    loop, seen = make_loop(config, model=SoundingModel(), reward=CompositeReward([reward]))
    for _ in range(30):
        loop.iterate()
    batch = reward.heard[0]
    assert (batch.frames.shape, batch.sound.shape) == ((4, 3, 2, 2, 3), (4, 1, 4))
    assert (batch.frame_rate, batch.sample_rate) == (24.0, 8)
    rewards = [m["reward/mean"] for m in seen.metrics]
    # the sound lies across the thin directions: 0.05 is the standard deviation of the data there
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.02


def test_parts_change_nothing_for_the_algorithm():
    """The same numbers as one tensor of video give the same weights, to the bit."""

    class Plain(GaussianModel):
        def __init__(self):
            super().__init__(SoundingModel.parts.shape)

        def decode(self, x0):
            return GaussianModel.decode(self, x0[:, :12].reshape(-1, 1, 3, 2, 2))

    ends = []
    for model in (SoundingModel(), Plain()):
        loop, _ = make_loop(make_config(), model=model)
        loop.iterate()
        ends.append(weights(loop))
    assert torch.equal(*ends)


def test_batches_are_split_and_joined_with_their_sound():
    whole = Videos(torch.arange(6).view(6, 1, 1, 1, 1).to(torch.uint8), 8.0, torch.arange(6.0).view(6, 1, 1), 4)
    parts = whole.split(2)
    assert [len(part) for part in parts] == [2, 2, 2]
    assert parts[1].sound.flatten().tolist() == [2.0, 3.0]
    assert parts[1].frames.data_ptr() == whole.frames[2:].data_ptr()  # a view: no video is held twice
    again = Videos.joined(parts)
    assert torch.equal(again.frames, whole.frames)
    assert torch.equal(again.sound, whole.sound)
    assert (again.frame_rate, again.sample_rate) == (8.0, 4)
    assert Videos.joined(Videos(whole.frames).split(3)).sound is None
