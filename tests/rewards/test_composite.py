"""The recipe of the documentation, run as it stands there, pays even motion of a sharp picture and nothing else."""

from pathlib import Path

import pytest
import torch
import yaml

from rewards import clips
from sage_grpo.config import RecipeConfig
from sage_grpo.core.protocols import Prompt
from sage_grpo.training.build import build_rewards

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "rewards-scorers.md").read_text()
FRAMES = 9
PAN, OTHER = clips.pan(frames=FRAMES), clips.pan(x=200.0, y=300.0, frames=FRAMES)
SHARE = ((torch.arange(FRAMES) - 1) / 6).clamp(0, 1)[:, None, None, None]
SPOILT = {
    "static": PAN[:1].repeat(FRAMES, 1, 1, 1),
    "blurred": clips.blurred(PAN, 3),
    "noisy": clips.noisy(PAN, 25),
    "shuffled": clips.shuffled(PAN),
    "crossfade": (PAN * (1 - SHARE) + OTHER * SHARE).round().byte(),
}


@pytest.fixture(scope="module")
def sums():
    section = PAGE.split("## Motion without a judge")[1].split("```yaml\n")[1].split("```")[0]
    reward, weights = build_rewards(RecipeConfig(rewards=yaml.safe_load(section)["rewards"]))
    videos = {"pan": PAN} | SPOILT
    scores = reward.score(torch.stack(list(videos.values())), [Prompt("")] * len(videos))
    assert scores.valid.all()
    return dict(zip(videos, (scores.values @ torch.tensor(weights).double()).tolist(), strict=True))


@pytest.mark.parametrize("spoilt", SPOILT)
def test_spoilt_clips_earn_less(sums, spoilt):
    assert sums[spoilt] < sums["pan"] - 0.2
