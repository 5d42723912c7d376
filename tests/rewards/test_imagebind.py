"""ImageBind's cosine of picture and sound is the original's, on a toy checkpoint in the released layout."""

import math

import pytest

pytest.importorskip("transformers")

import torch
from torch.nn import functional as F

import imagebind_original
from imagebind_original import SIZES, Original, release, weights
from sage_grpo.core.protocols import Prompt, Videos
from sage_grpo.rewards.frames import Unscorable
from sage_grpo.rewards.imagebind.convert import convert
from sage_grpo.rewards.imagebind.inputs import frame_pairs, pictures, spectrograms
from sage_grpo.rewards.imagebind.model import ImageBindReward

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def reward(tmp_path_factory):
    place = tmp_path_factory.mktemp("imagebind")
    convert(release(place), place / "converted", sizes=SIZES)
    return ImageBindReward(str(place / "converted"))


def video(frames=60, height=36, width=64, seed=0):
    """Colours that flow."""
    noise = torch.rand(1, 3, 8, 5, 5, generator=torch.Generator().manual_seed(seed))
    flow = F.interpolate(noise, (frames, height, width), mode="trilinear")[0].permute(1, 2, 3, 0)
    return (255 * flow).byte()


def siren(seconds, rate=16_000, seed=0):
    """Rises for as long as it lasts, in a little noise."""
    time = torch.arange(round(seconds * rate)) / rate
    noise = torch.randn(len(time), generator=torch.Generator().manual_seed(seed))
    return 0.4 * torch.sin(2 * math.pi * (200 + 400 * time) * time) + 0.02 * noise


def scored(reward, frames, wave, frame_rate=16.0, rate=16_000):
    wave = wave if wave.ndim == 2 else wave[None]
    scores = reward.submit(Videos(frames[None], frame_rate, wave[None], rate), [Prompt("")])()
    assert scores.valid.all(), reward.reasons
    return scores.values.item()


@pytest.mark.parametrize(
    ("frames", "height", "width", "frame_rate", "seconds"),
    [(60, 36, 64, 16.0, 3.75), (75, 90, 50, 24.0, 3.1), (20, 40, 40, 16.0, 1.25), (50, 300, 240, 25.0, 2.0)],
    ids=["wide", "tall", "short and square", "of one clip"],
)
def test_scores_are_those_of_the_original(reward, frames, height, width, frame_rate, seconds):
    seen, heard = video(frames, height, width), siren(seconds)
    expected = Original(weights()).score(seen, frame_rate, heard)
    assert scored(reward, seen, heard, frame_rate) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("faint", [False, True], ids=["plain", "faint"])
@pytest.mark.parametrize("sense", ["vision", "audio"])
def test_each_network_is_the_original(sense, faint, tmp_path):
    """Faint inputs with faint places: what is added to variances matters then."""
    state, scale = weights(), 1e-3 if faint else 1.0
    state |= {name: scale * x for name, x in state.items() if name.endswith(("cls_token", "pos_embed"))}
    convert(release(tmp_path, state), tmp_path / "converted", sizes=SIZES)
    shape = (2, 3, 2, 224, 224) if sense == "vision" else (2, 1, 128, 204)
    x = scale * torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found = getattr(ImageBindReward(str(tmp_path / "converted")).network, sense)(x)
    expected = F.normalize(Original(state).embed(sense, x), dim=-1)
    assert (found - expected).abs().max() < 5e-6
    assert (expected[0] - expected[1]).abs().max() > 0.05


def test_pictures_are_the_original(reward):
    for height, width in ((36, 64), (64, 36), (60, 61)):
        seen = video(60, height, width)
        assert (pictures(seen, 16.0) - imagebind_original.pictures(seen, 16.0)).abs().max() < 1e-5
    square = video(60, 40, 40)
    once, thrice = pictures(square, 16.0), imagebind_original.pictures(square, 16.0)
    assert (once.repeat_interleave(3, 0) - thrice).abs().max() < 1e-5


def test_spectrograms_are_kaldis():
    """Of noise, which leaves no band at the floor, where rounding alone is seen."""
    noise = 0.1 * torch.randn(50_000, generator=torch.Generator().manual_seed(0))
    found, expected = spectrograms(noise), imagebind_original.spectrograms(noise)
    assert found.shape == (3, 1, 128, 204)
    assert (found - expected).abs().max() < 1e-4
    assert (found[0] - found[2]).abs().max() > 0.1
    assert spectrograms(noise[:20_000]).shape == (1, 1, 128, 204)


@pytest.mark.parametrize(
    ("frames", "frame_rate", "pairs"),
    [
        (81, 16.0, [(0, 31), (13, 44), (25, 56), (37, 68), (49, 80)]),
        (40, 20.0, [(0, 39)]),
        (5, 24.0, [(0, 4)]),
        (1, 24.0, [(0, 0)]),
        (5, 0.1, [(0, 0), (2, 2), (3, 3), (4, 4), (4, 4)]),
    ],
)
def test_frames_are_the_ends_of_clips_of_two_seconds(frames, frame_rate, pairs):
    assert frame_pairs(frames, frame_rate) == pairs


def test_picture_and_sound_matter(reward):
    seen, heard = video(), siren(3.75)
    score = scored(reward, seen, heard)
    assert abs(score - scored(reward, video(seed=1), heard)) > 1e-3
    assert abs(score - scored(reward, seen, siren(3.75).flip(0) ** 3)) > 1e-3
    assert abs(score - scored(reward, seen.flip(-1), heard)) > 1e-4  # blue for red


@pytest.mark.parametrize("rate", [44_100, 48_000])
def test_the_rate_of_the_sound_does_not_matter(reward, rate):
    """The noise is made once and brought to the other rate by whole waves, not by what is tested."""
    slow = siren(3.75)
    waves = torch.fft.rfft(slow.double())
    fast = torch.fft.irfft(waves, round(3.75 * rate)) * rate / 16_000
    score = scored(reward, video(), slow)
    assert scored(reward, video(), fast, rate=rate) == pytest.approx(score, abs=5e-3)  # the filter's edge is near 8 kHz
    assert abs(scored(reward, video(), fast, rate=16_000) - score) > 0.1  # too slow and too low


def test_channels_are_averaged(reward):
    left, right = siren(2.5), siren(2.5).flip(0)
    both = scored(reward, video(), torch.stack([left, right]))
    assert both == pytest.approx(scored(reward, video(), (left + right) / 2), abs=1e-6)
    assert both != pytest.approx(scored(reward, video(), left), abs=1e-3)


def test_what_cannot_be_seen_or_heard_is_masked(reward):
    with pytest.raises(Unscorable, match="399 samples of 16000 a second; 400 are needed"):
        spectrograms(torch.zeros(399))
    with pytest.raises(Unscorable, match="frames of 2×401 are too narrow"):
        pictures(torch.zeros(3, 2, 401, 3, dtype=torch.uint8), 8.0)
    assert not reward.submit(Videos(video()[None], 16.0), [Prompt("")])().valid.any()
    assert reward.reasons == {0: "it has no sound"}


def test_gradients_are_off(reward):
    assert not any(p.requires_grad for p in reward.network.parameters())
