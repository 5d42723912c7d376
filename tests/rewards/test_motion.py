"""Motion scores order spoilt clips as their names say, and no clip that stands still wins the combined one."""

import pytest
import torch

from rewards import clips
from sage_grpo.config import ConfigError
from sage_grpo.core.protocols import Prompt
from sage_grpo.rewards.frames import shrunk
from sage_grpo.rewards.motion import SIDE, MotionReward, optical_flow

PAN = clips.pan()
CLIPS = {
    "pan": PAN,
    "object": clips.object_in_scene(),
    "slow": clips.pan(0.2, 0.1),
    "static": PAN[:1].repeat(len(PAN), 1, 1, 1),
    "flat": torch.full_like(PAN, 128),
    "shuffled": clips.shuffled(PAN),
    "shaken": clips.shaken(),
    "half rate": clips.half_rate(PAN),
    "cut": torch.cat([PAN[:8], clips.pan(x=200.0, y=400.0)[8:]]),
    "mirrored": torch.cat([PAN[:8], PAN[8:].flip(2)]),
    "fast": clips.pan(12.0, 1.0, 5.0, 20.0),
    "noisy": clips.noisy(PAN, 25),
    "static, noisy": clips.noisy(PAN[:1].repeat(len(PAN), 1, 1, 1), 10),
    "flicker": clips.lit(PAN, 1 + 0.1 * torch.tensor([1.0, -1.0] * 9)[: len(PAN)]),
    "fade": clips.lit(PAN, torch.linspace(1, 0.5, len(PAN))),
    "blurred": clips.blurred(PAN, 3),
}


@pytest.fixture(scope="module")
def scores():
    parts = [MotionReward(), MotionReward(combined=True)]
    found = [part.score(torch.stack(list(CLIPS.values())), [Prompt("")] * len(CLIPS)) for part in parts]
    assert all(s.valid.all() for s in found)
    names = [name for part in parts for name in part.names]
    rows = torch.cat([s.values for s in found], 1).tolist()
    return {clip: dict(zip(names, row, strict=True)) for clip, row in zip(CLIPS, rows, strict=True)}


@pytest.mark.parametrize(("dx", "dy"), [(2.0, 1.0), (-3.0, 0.5), (0.0, -6.0), (10.0, 0.0)])
def test_flow_is_the_motion_of_the_camera(dx, dy):
    light = shrunk(clips.pan(dx, dy, 100.0, 150.0, frames=4), SIDE).mean(1, keepdim=True)
    flow = optical_flow(light[:-1], light[1:]) * clips.HEIGHT / SIDE
    assert flow[:, 0].median().item() == pytest.approx(-dx, abs=0.1)  # the scene goes where the camera does not
    assert flow[:, 1].median().item() == pytest.approx(-dy, abs=0.1)


@pytest.mark.slow
def test_dynamic_is_a_band(scores):
    dynamic = {clip: row["dynamic"] for clip, row in scores.items()}
    assert dynamic["pan"] == dynamic["object"] == 1
    assert max(dynamic["static"], dynamic["flat"]) < 1e-3
    assert 0.1 < dynamic["slow"] < 0.5
    assert dynamic["fast"] < 0.9
    assert dynamic["shuffled"] < 0.6


@pytest.mark.slow
@pytest.mark.parametrize("spoilt", ["shuffled", "shaken", "half rate", "cut"])
def test_acceleration_catches(scores, spoilt):
    good = min(scores["pan"]["acceleration"], scores["object"]["acceleration"])
    assert scores[spoilt]["acceleration"] < 4 * good < 0


@pytest.mark.slow
def test_acceleration_forgives_noise_and_speed(scores):
    assert scores["noisy"]["acceleration"] > -1
    assert scores["fast"]["acceleration"] > -1.5


@pytest.mark.slow
def test_cut_is_seen_and_motion_is_not_a_cut(scores):
    for clip in ("cut", "mirrored"):
        assert scores[clip]["cut"] < -0.8
    for clip in ("pan", "object", "static", "slow", "fast", "noisy", "fade"):
        assert scores[clip]["cut"] > -0.1, clip


@pytest.mark.slow
def test_flicker_is_light_that_comes_and_goes(scores):
    assert scores["flicker"]["flicker"] < -0.02
    for clip in ("pan", "object", "static", "noisy", "fade", "blurred"):
        assert scores[clip]["flicker"] > -0.005, clip


@pytest.mark.slow
def test_combined_pays_even_motion_only(scores):
    combined = {clip: row["motion"] for clip, row in scores.items()}
    sound = min(combined["pan"], combined["object"])
    spoilt = (
        "static",
        "flat",
        "shuffled",
        "shaken",
        "half rate",
        "cut",
        "mirrored",
        "flicker",
        "static, noisy",
        "slow",
    )
    assert all(combined[clip] < sound - 0.2 for clip in spoilt), combined


def test_too_short_is_masked():
    assert not MotionReward().score(PAN[None, :2], [Prompt("")]).valid.any()


def test_the_band_is_checked():
    with pytest.raises(ConfigError, match="the band needs 0 < low < high"):
        MotionReward(low=0.2, high=0.1)
