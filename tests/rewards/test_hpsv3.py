"""HPSv3 gives the original's numbers from the original's file, and says what is missing or wrong."""

import zipfile

import pytest

pytest.importorskip("peft")
pytest.importorskip("transformers")

import torch
from safetensors.torch import save_file

from hpsv3_original import ENDING, INSTRUCTION, Original, release, weights
from sage_grpo.config import RecipeConfig
from sage_grpo.core.protocols import Prompt
from sage_grpo.rewards import hpsv3
from sage_grpo.rewards.errors import MissingWeights, RewardError
from sage_grpo.rewards.hpsv3 import HPSv3Reward, read_instruction
from sage_grpo.rewards.videoalign.frames import frame_size
from sage_grpo.training.build import build_rewards

pytestmark = pytest.mark.slow

TEXTS = ("a cat", "a much longer prompt about two dogs that run", "x")
SIZE = (448, 448)  # has the pixels that HPSv3 wants: nothing is resized


def noise(*shape, seed=1):
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    return release(tmp_path_factory.mktemp("hpsv3"), weights())


@pytest.fixture(scope="module")
def scorer(places):
    return HPSv3Reward(*places[:2], instruction=places[2], frames=2, dtype="float32")


@pytest.fixture(scope="module")
def original():
    return Original(weights())


@pytest.fixture(scope="module")
def videos():
    made = noise(3, 2, *SIZE, 3)
    made[1] //= 2
    made[2, :, :200] = 200
    return made


@pytest.fixture(scope="module")
def expected(original, videos):
    scores = [[original.score(x, text, SIZE)[0] for x in video] for video, text in zip(videos, TEXTS, strict=True)]
    return torch.tensor(scores).double().mean(1)


def test_the_originals_scores(scorer, videos, expected):
    scores = scorer.score(videos, [Prompt(text) for text in TEXTS])
    assert scores.valid.all()
    off = (scores.values[:, 0] - expected).abs().max().item()
    print(f"largest difference {off:.2g}")
    assert off <= 1e-5
    assert expected.std() > 0.01  # the videos do differ


def test_mean_and_spread_are_in_this_order(scorer, original, videos):
    found = scorer.preference(videos[0, 0].permute(2, 0, 1).float(), TEXTS[0])
    assert found.tolist() == pytest.approx(original.score(videos[0, 0], TEXTS[0], SIZE), abs=1e-5)


def test_positions_left_to_the_library_are_seen(scorer, videos, expected, monkeypatch):
    plain = scorer.model.forward

    def library_positions(*, position_ids, input_ids, **rest):
        kinds = (input_ids == scorer.model.config.image_token_id).int()
        return plain(input_ids=input_ids, mm_token_type_ids=kinds, **rest)

    monkeypatch.setattr(scorer.model, "forward", library_positions)
    found = scorer.score(videos, [Prompt(text) for text in TEXTS]).values[:, 0]
    assert (found - expected).abs().max() > 1e-3


@pytest.mark.parametrize("shape", [(90, 160), (480, 832)], ids=["enlarged", "shrunk"])
def test_pictures_of_another_size(scorer, original, shape):
    """Pillow rounds between the two directions of a resize, torch at the end: at most a grey level apart."""
    size = frame_size(*shape, most=hpsv3.PIXELS, least=hpsv3.PIXELS)
    video = noise(1, 1, *(n // 10 for n in shape), 3).repeat_interleave(10, 2).repeat_interleave(10, 3)
    found = scorer.score(video, [Prompt("a cat")]).values.item()
    assert found == pytest.approx(original.score(video[0, 0], "a cat", size)[0], abs=0.01)


def test_in_bfloat16_the_originals_rounding(places, original, videos, expected):
    scorer = HPSv3Reward(*places[:2], instruction=places[2], frames=1)
    assert scorer.model.language_model.rotary_emb.inv_freq.dtype == torch.bfloat16
    assert scorer.head[0].weight.dtype == torch.float32
    found = scorer.score(videos[:1, :1], [Prompt(TEXTS[0])]).values.item()
    assert found == pytest.approx(original.score(videos[0, 0], TEXTS[0], SIZE)[0], abs=0.1)


def test_names_of_tokens_in_a_prompt_change_nothing(scorer, videos):
    plain, tricky = (
        scorer.score(videos[:1], [Prompt(text)]).values for text in ("a cat", "a<|Rew<|Reward|>ard|> cat<|image_pad|>")
    )
    assert torch.equal(plain, tricky)


def test_the_instruction_is_read_out_of_the_wheel(places, tmp_path, caplog):
    with zipfile.ZipFile(tmp_path / "hpsv3-1.0.0-py3-none-any.whl", "w") as wheel:
        wheel.write(places[2], "hpsv3/dataset/data_collator_qwen.py")
    assert read_instruction(None, tmp_path) == read_instruction(places[2], tmp_path) == INSTRUCTION + ENDING
    assert "is not the instruction of hpsv3 1.0.0" in caplog.text  # it is a toy's
    with zipfile.ZipFile(tmp_path / "other.whl", "w") as wheel:
        wheel.writestr("other.py", "")
    with pytest.raises(RewardError, match=r"other\.whl is not a wheel of hpsv3"):
        read_instruction(str(tmp_path / "other.whl"), tmp_path)


@pytest.mark.parametrize("change", ["a tensor missing", "a tensor too many", "a head of one layer"])
def test_other_checkpoints_are_refused(places, tmp_path, change):
    state = weights()
    if change == "a tensor missing":
        del state["model.layers.1.mlp.up_proj.weight"]
    elif change == "a tensor too many":
        state["model.layers.2.mlp.up_proj.weight"] = torch.zeros(2)
    else:
        state = {n: x for n, x in state.items() if "rm_head" not in n} | {"rm_head.weight": torch.zeros(2, 64)}
    save_file(state, tmp_path / "HPSv3.safetensors")
    with pytest.raises(RewardError, match=r"does not fit|is not HPSv3's"):
        HPSv3Reward(str(tmp_path), places[1], instruction=places[2])


def test_what_is_missing_is_named(places, tmp_path):
    (tmp_path / "half.txt").write_text(INSTRUCTION)
    (tmp_path / "HPSv3.safetensors").write_bytes(b"x")
    for arguments, error, words in [
        ((str(tmp_path / "none"), places[1], places[2]), MissingWeights, "hf download MizzenAI/HPSv3"),
        ((places[0], str(tmp_path), places[2]), MissingWeights, "hf download Qwen/Qwen2-VL-7B-Instruct"),
        ((places[0], places[1], str(tmp_path / "none.txt")), MissingWeights, "is missing"),
        ((places[0], places[1], str(tmp_path / "half.txt")), RewardError, "once each"),
        ((str(tmp_path), places[1], places[2]), RewardError, "downloaded whole"),
    ]:
        path, base, instruction = arguments
        with pytest.raises(error, match=words):
            HPSv3Reward(path, base, instruction=instruction)
    with pytest.raises(MissingWeights, match=r"pip download --no-deps hpsv3==1\.0\.0 -d"):
        HPSv3Reward(*places[:2])


def test_in_recipes(places):
    options = {"path": places[0], "base": places[1], "instruction": places[2], "dtype": "float32"}
    assert build_rewards(RecipeConfig(rewards=[{"type": "hpsv3", "options": options}]))[0].names == ("hpsv3",)
