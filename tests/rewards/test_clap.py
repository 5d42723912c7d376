"""CLAPScore against transformers' own logits, on a tiny checkpoint; long sound without chance; and what is refused."""

import json
import math

import pytest

pytest.importorskip("transformers")

import numpy as np
import torch
import transformers as hf

from sage_grpo.config import ConfigError
from sage_grpo.core.protocols import Prompt, Videos
from sage_grpo.rewards.clap import CLAPReward, make_tiny_checkpoint
from sage_grpo.rewards.errors import RewardError

pytestmark = pytest.mark.slow

RATE = 48_000  # of the extractor, whose window is one second
LONG = "a very long prompt that goes on and on " * 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("clap")
    make_tiny_checkpoint(path)
    return str(path)


@pytest.fixture(scope="module")
def reward(folder):
    return CLAPReward(folder)


def siren(seconds, rate=RATE):
    """Rises for as long as it lasts, so that no two parts of it are alike."""
    time = torch.arange(round(seconds * rate)) / rate
    return 0.5 * torch.sin(2 * math.pi * (200 + 600 * time) * time)[None]


def scored(reward, wave, prompt="a siren", rate=RATE):
    prompt = prompt if isinstance(prompt, Prompt) else Prompt(prompt)
    videos = Videos(torch.zeros(1, 2, 4, 4, 3, dtype=torch.uint8), 8.0, wave[None], rate)
    scores = reward.submit(videos, [prompt])()
    assert scores.valid.all(), reward.reasons
    return scores.values.item()


def expected(folder, wave, text):
    """Through `ClapModel(...)`, with the text padded to its full length; the sound fits into one window."""
    model = hf.ClapModel.from_pretrained(folder).eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    extractor = hf.ClapFeatureExtractor.from_pretrained(folder)
    tokens = tokenizer([text], truncation=True, padding="max_length", max_length=38, return_tensors="pt")
    assert tokens.input_ids.shape == (1, 38)
    heard = extractor([wave.numpy()], sampling_rate=RATE, return_tensors="pt")
    with torch.no_grad():
        logits = model(**tokens, input_features=heard["input_features"].float()).logits_per_audio
    return logits.item() / model.logit_scale_a.exp().item()


@pytest.mark.parametrize("text", ["a siren", LONG], ids=["short", "truncated"])
@pytest.mark.parametrize("seconds", [0.3, 1.0], ids=["repeated", "whole"])
def test_scores_are_those_of_transformers(folder, reward, seconds, text):
    wave = siren(seconds)
    assert scored(reward, wave, text) == pytest.approx(expected(folder, wave[0], text), abs=1e-6)


def test_a_long_sound_is_heard_in_windows_from_its_start_to_its_end(folder, reward):
    wave = siren(2.5)
    windows = [wave[0, start : start + RATE] for start in (0, 36_000, 72_000)]
    each = [expected(folder, window, "a siren") for window in windows]
    assert max(each) - min(each) > 1e-3  # else any window would do
    assert scored(reward, wave) == pytest.approx(sum(each) / 3, abs=1e-6)


def test_nothing_is_left_to_chance(reward):
    np.random.seed(0)
    state, first = np.random.get_state()[1].tolist(), scored(reward, siren(2.5))
    assert np.random.get_state()[1].tolist() == state
    np.random.seed(1)
    assert scored(reward, siren(2.5)) == first


@pytest.mark.parametrize("rate", [16_000, 44_100])
def test_the_rate_of_the_sound_does_not_matter_and_what_is_heard_does(reward, rate):
    at_home = scored(reward, siren(0.9))
    assert scored(reward, siren(0.9, rate), rate=rate) == pytest.approx(at_home, abs=2e-3)
    assert abs(scored(reward, siren(0.9, rate), rate=RATE) - at_home) > 6e-3  # too fast and too high


def test_channels_are_averaged(reward):
    wave, other = siren(0.5), siren(1.0)[:, -RATE // 2 :]
    both = scored(reward, torch.cat([wave, other]))
    assert both == scored(reward, torch.cat([other, wave]))
    assert both == pytest.approx(scored(reward, (wave + other) / 2), abs=1e-6)
    assert both != pytest.approx(scored(reward, wave), abs=1e-3)


def test_text_matters_and_a_column_says_how_it_should_sound(folder, reward):
    wave = siren(0.5)
    cat, dog = scored(reward, wave, "a cat"), scored(reward, wave, "a dog")
    assert abs(cat - dog) > 1e-4
    assert scored(reward, wave, Prompt("a cat", {"sound": "a dog"})) == dog
    for nothing in (None, "", "  "):
        assert scored(reward, wave, Prompt("a cat", {"sound": nothing})) == cat
    named = CLAPReward(folder, column="noise")
    assert scored(named, wave, Prompt("a cat", {"sound": "a bird", "noise": "a dog"})) == dog
    assert scored(reward, wave, LONG) == scored(reward, wave, LONG + "and more")


def test_without_sound_it_is_masked_and_silence_is_scored(reward):
    frames, prompts = torch.zeros(1, 2, 4, 4, 3, dtype=torch.uint8), [Prompt("a siren")]
    assert not reward.submit(Videos(frames, 8.0), prompts)().valid.any()
    assert reward.reasons == {0: "it has no sound"}
    assert math.isfinite(scored(reward, torch.zeros(1, RATE)))


def test_gradients_are_off(reward):
    assert not any(p.requires_grad for p in reward.model.parameters())


def test_pickled_weights_are_refused(folder, tmp_path):
    model = hf.ClapModel.from_pretrained(folder)
    model.config.save_pretrained(tmp_path)
    hf.ClapProcessor.from_pretrained(folder).save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="is not a CLAP checkpoint with safetensors"):
        CLAPReward(str(tmp_path))


def test_half_a_checkpoint_is_refused(folder, tmp_path):
    """Transformers would fill what is missing with random numbers and only warn."""
    hf.ClapModel.from_pretrained(folder).audio_model.save_pretrained(tmp_path)
    hf.ClapProcessor.from_pretrained(folder).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(hf.ClapConfig.from_pretrained(folder).to_dict()))
    with pytest.raises(ConfigError, match="is not a whole CLAP: it has no"):
        CLAPReward(str(tmp_path))


def test_weights_without_an_extractor_are_refused(folder, tmp_path):
    hf.ClapModel.from_pretrained(folder).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="a tokenizer and a feature extractor"):
        CLAPReward(str(tmp_path))


def test_one_that_listens_at_random_is_refused(tmp_path):
    make_tiny_checkpoint(tmp_path, enable_fusion=True, fusion_type="aff_2d", patch_embed_input_channels=1)
    with pytest.raises(ConfigError, match=r"random parts of a sound \(enable_fusion\); use laion/larger_clap_general"):
        CLAPReward(str(tmp_path))


def test_a_device_that_is_not_there_is_told(folder):
    with pytest.raises(RewardError, match="clap cannot be put on device 'nonsense'"):
        CLAPReward(folder, device="nonsense")
