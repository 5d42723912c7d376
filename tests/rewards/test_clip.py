"""CLIPScore and PickScore against transformers' own logits, on a tiny checkpoint."""

import json

import pytest

pytest.importorskip("transformers")

import torch
import transformers as hf
from PIL import Image

from rewards import clips
from sage_grpo.config import ConfigError, RecipeConfig
from sage_grpo.core.protocols import Prompt
from sage_grpo.rewards.clip import CLIPReward, PickScoreReward, make_tiny_checkpoint
from sage_grpo.rewards.errors import MissingWeights
from sage_grpo.training.build import build_rewards

pytestmark = pytest.mark.slow

VIDEOS = torch.stack([clips.pan(frames=5), clips.pan(x=200.0, y=400.0, frames=5)])
LONG = "a very long prompt that goes on and on " * 5
PROMPTS = [Prompt("a woman in uniform"), Prompt(LONG)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("clip")
    make_tiny_checkpoint(path)
    return str(path)


def logits(folder, frames, text):
    """Through `CLIPModel(...)` with every frame as a PIL image and the text padded to its full length."""
    model, tokenizer = hf.CLIPModel.from_pretrained(folder).eval(), hf.CLIPTokenizer.from_pretrained(folder)
    pixels = hf.CLIPImageProcessorPil.from_pretrained(folder)(
        [Image.fromarray(frame.numpy()) for frame in frames], return_tensors="pt"
    )
    tokens = tokenizer([text], truncation=True, padding="max_length", max_length=24, return_tensors="pt")
    assert tokens.input_ids.shape == (1, 24)
    with torch.no_grad():
        return model(**tokens, **pixels).logits_per_image.mean().item(), model.logit_scale.exp().item()


@pytest.mark.parametrize("number", [0, 1], ids=["short", "truncated"])
def test_scores_are_those_of_transformers(folder, number):
    chosen = VIDEOS[number, [0, 2, 4]]
    expected, scale = logits(folder, chosen, PROMPTS[number].text)
    cosine = CLIPReward(folder, frames=3).score(VIDEOS, PROMPTS)
    assert cosine.valid.all()
    assert cosine.values[number].item() == pytest.approx(expected / scale, abs=1e-6)
    scaled = CLIPReward(folder, frames=3, scale=2.5).score(VIDEOS, PROMPTS).values[number].item()
    assert scaled == pytest.approx(2.5 * expected / scale, abs=1e-6)
    picked = PickScoreReward(folder, frames=3).score(VIDEOS, PROMPTS).values[number].item()
    assert picked == pytest.approx(expected, abs=1e-5)
    divided = PickScoreReward(folder, frames=3, divisor=26).score(VIDEOS, PROMPTS).values[number].item()
    assert divided == pytest.approx(expected / 26, abs=1e-6)


def test_text_matters_and_its_end_beyond_the_limit_does_not(folder):
    reward = CLIPReward(folder)
    texts = [Prompt("a cat"), Prompt("a dog"), Prompt(LONG), Prompt(LONG + "and more")]
    values = reward.score(VIDEOS[:1].expand(4, -1, -1, -1, -1), texts).values.flatten()
    assert (values[0] - values[1]).abs() > 1e-4
    assert values[2] == values[3]


def test_gradients_are_off(folder):
    assert not any(p.requires_grad for p in CLIPReward(folder).model.parameters())


def test_pickled_weights_are_refused(folder, tmp_path):
    model = hf.CLIPModel.from_pretrained(folder)
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="is not a CLIP checkpoint with safetensors"):
        CLIPReward(str(tmp_path), processor=folder)


def test_weights_that_are_not_here_are_told_from_wrong_ones():
    """A rehearsal goes on without the one and stops at the other."""
    with pytest.raises(MissingWeights, match="nobody/nothing is not a CLIP checkpoint"):
        CLIPReward("nobody/nothing")


def test_half_a_checkpoint_is_refused(folder, tmp_path):
    """Transformers would fill what is missing with random numbers and only warn."""
    hf.CLIPModel.from_pretrained(folder).vision_model.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(hf.CLIPConfig.from_pretrained(folder).to_dict()))
    with pytest.raises(ConfigError, match="is not a whole CLIP: it has no"):
        CLIPReward(str(tmp_path), processor=folder)


def test_in_recipes(folder):
    entries = [
        {"type": "pickscore", "options": {"path": folder, "divisor": 26, "frames": 2}},
        {"type": "motion", "weights": {"cut": 0.5}},
        {"type": "sharpness"},
    ]
    reward, weights = build_rewards(RecipeConfig(rewards=entries))
    assert list(reward.names) == ["pickscore", "dynamic", "acceleration", "cut", "flicker", "sharpness"]
    assert weights == (1, 1, 1, 0.5, 1, 1)
    assert reward.score(VIDEOS, PROMPTS).valid.all()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"type": "motion", "options": {"hihg": 1}}, "motion has no option 'hihg'; did you mean 'high'"),
        ({"type": "sharpness", "options": {"path": "x"}}, "sharpness has no option 'path'; known: frames, natural"),
        ({"type": "pickscore", "options": {"divisor": 0}}, "divisor=0 must be above 0"),
        ({"type": "clip", "options": {"scale": 0}}, "scale=0 must be above 0"),
        ({"type": "clip", "options": {"frames": 0}}, "clip: frames=0; at least one is needed"),
    ],
)
def test_wrong_options_are_told(entry, message):
    with pytest.raises(ConfigError, match=message):
        build_rewards(RecipeConfig(rewards=[entry]))
