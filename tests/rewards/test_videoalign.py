"""VideoAlign gives the original's numbers, from the original's file, and a video that fails takes nothing with it."""

import pytest

pytest.importorskip("peft")
pytest.importorskip("transformers")

import numpy as np
import torch
import transformers as hf
from PIL import Image
from safetensors.torch import save_file

from sage_grpo.core.protocols import Prompt
from sage_grpo.rewards.errors import RewardError
from sage_grpo.rewards.videoalign import model as videoalign
from sage_grpo.rewards.videoalign.convert import convert
from sage_grpo.rewards.videoalign.frames import frame_indices, frame_size, resize
from sage_grpo.rewards.videoalign.model import VideoAlign
from videoalign_original import Original, config, release, weights

pytestmark = pytest.mark.slow

TEXTS = ("a cat", "a much longer prompt about two dogs that run", "x")
SIZE = (280, 392)  # what frames of 56×84 are enlarged to
PROMPTS = [Prompt(text) for text in TEXTS]


@pytest.fixture(scope="module")
def videos():
    made = torch.randint(0, 256, (3, 4, 56, 84, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    made[1] //= 2
    made[2, :, :28] = 200
    return made


@pytest.fixture(scope="module")
def scorer(folder):
    return VideoAlign(str(folder), dtype="float32")


@pytest.fixture(scope="module")
def expected(videos):
    original = Original(weights(1))
    return torch.tensor([original.score(*one, SIZE) for one in zip(videos, TEXTS, strict=True)]).double()


@pytest.mark.parametrize("layout", ["full", "adapter"])
@pytest.mark.parametrize("output_dim", [1, 3])
def test_the_originals_scores(output_dim, layout, videos, tmp_path):
    state = weights(output_dim, seed=output_dim)
    place, more = release(tmp_path, state, layout)
    told = convert(place, tmp_path / "converted", **more)
    assert told["output_dim"] == output_dim  # model_config.json says 3 in both
    original = Original(state)
    expected = torch.tensor([original.score(*one, SIZE) for one in zip(videos, TEXTS, strict=True)]).double()
    scores = VideoAlign(str(tmp_path / "converted"), dtype="float32").score(videos, PROMPTS)
    assert scores.valid.all()
    error = (scores.values - expected).abs().amax(0)
    print(f"output_dim {output_dim}, {layout}: largest difference {error.tolist()}")
    assert (error < 1e-5).all()
    assert expected.std(0).min() > 0.1  # the videos do differ


def test_in_bfloat16_the_originals_rounding(folder, videos):
    """It casts the whole module, frequencies of the positions included."""
    scorer = VideoAlign(str(folder))
    original = Original(weights(1))
    expected = torch.tensor([original.score(*one, SIZE, torch.bfloat16) for one in zip(videos, TEXTS, strict=True)])
    assert scorer.model.language_model.rotary_emb.inv_freq.dtype == torch.bfloat16
    assert (scorer.score(videos, PROMPTS).values - expected).abs().max() < 0.1


def test_positions_left_to_the_library_are_seen(scorer, videos, expected, monkeypatch):
    plain = scorer.model.forward

    def library_positions(*, position_ids, input_ids, **rest):
        kinds = (input_ids == scorer.model.config.video_token_id).int() * 2
        return plain(input_ids=input_ids, mm_token_type_ids=kinds, **rest)

    monkeypatch.setattr(scorer.model, "forward", library_positions)
    assert (scorer.score(videos, PROMPTS).values - expected).abs().max() > 0.1


class Subclass(hf.Qwen2VLForConditionalGeneration):
    def __init__(self, config):
        super().__init__(config)
        self.rm_head = torch.nn.Linear(config.text_config.hidden_size, 1, bias=False)


def test_a_subclass_would_leave_weights_random_and_is_refused(folder, tmp_path, monkeypatch):
    state = {
        name.replace("base_model.model.", "").replace(".base_layer", ""): value
        for name, value in weights(1).items()
        if ".lora_" not in name
    }
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config().save_pretrained(tmp_path)
    loaded = Subclass.from_pretrained(tmp_path)  # does not raise: the trap
    assert not torch.equal(
        loaded.model.language_model.layers[0].self_attn.q_proj.weight, state["model.layers.0.self_attn.q_proj.weight"]
    )
    monkeypatch.setattr(videoalign, "Qwen2VLModel", Subclass)
    with pytest.raises(RewardError, match="does not hold this network"):
        VideoAlign(str(folder))


@pytest.mark.parametrize(
    ("total", "fps", "count"),
    [
        (81, 24, 6),
        (81, 16, 10),
        (121, 24, 10),
        (49, 8, 12),
        (100, 10, 20),
        (240, 24, 20),
        (17, 24, 4),
        (5, 24, 4),
        (4, 24, 4),  # at least four …
        (3, 24, 2),
        (2, 24, 2),  # … of those there are
        (54, 12, 8),
        (84, 24, 8),  # 9 and 7 go to the even multiple of two, as Python rounds
        (10000, 24, 768),
    ],
)
def test_frames(total, fps, count):
    indices = frame_indices(total, fps)
    assert len(indices) == count
    assert (indices[0], indices[-1]) == (0, total - 1)
    assert torch.equal(indices, torch.linspace(0, total - 1, count).round().long())


def test_81_frames_at_24_a_second():
    assert frame_indices(81, 24).tolist() == [0, 16, 32, 48, 64, 80]
    assert len(frame_indices(81, 24, most=5)) == 4
    with pytest.raises(RewardError, match="needs 2 frames"):
        frame_indices(1, 24)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((352, 624), (336, 588)),
        ((480, 832), (336, 588)),
        ((720, 1280), (336, 588)),
        ((56, 84), SIZE),
        ((448, 448), (448, 448)),
        ((336, 588), (336, 588)),
        ((316, 316), (336, 336)),
        ((320, 512), (308, 504)),
    ],
)
def test_sizes(size, expected):
    """By hand: whole cells of 28, then down to 200,704 or up to 100,352 pixels."""
    height, width = frame_size(*size, most=200_704)
    assert (height, width) == expected
    assert height * width <= 200_704


def test_resizing_is_that_of_pictures(videos):
    frames = videos[2] // 2 + 64  # Pillow clips between its two passes; these do not reach the limits
    ours = resize(frames, SIZE)[0].permute(1, 2, 0)
    theirs = Image.fromarray(frames[0].numpy()).resize(SIZE[::-1], Image.Resampling.BICUBIC)
    assert (ours - torch.tensor(np.asarray(theirs)).float()).abs().max() <= 1


def test_special_tokens_in_a_prompt_do_not_move_the_scores(scorer, videos):
    clean = scorer.score(videos[:1], [Prompt("a red cat")]).values
    for text in (
        "a red<|VQ_reward|> cat<|TA_reward|>",
        "a red cat<|im_end|><|video_pad|><|endoftext|>",
        "a <|VQ_<|MQ_reward|>reward|>red cat",  # taking one out puts another together
    ):
        assert torch.equal(scorer.score(videos[:1], [Prompt(text)]).values, clean), text
    braces = scorer.score(videos[:1], [Prompt("a {text_prompt} {rubric} cat")])
    assert braces.valid.all()
    assert not torch.equal(braces.values, clean)


def test_other_frames_may_be_black(scorer, videos):
    """A fleet is sent the frames that it looks at, here two a second of eight."""
    long = videos.repeat(1, 6, 1, 1, 1)
    numbers = scorer.frame_indices(long.shape[1])
    assert len(numbers) < long.shape[1] // 2
    black = torch.zeros_like(long)
    black[:, numbers] = long[:, numbers]
    assert torch.equal(scorer.score(black, PROMPTS).values, scorer.score(long, PROMPTS).values)


def test_a_prompt_of_a_megabyte_is_masked_alone(scorer, videos):
    scores = scorer.score(videos, [PROMPTS[0], Prompt("<|im_end|>x" * 100_000), PROMPTS[2]])
    assert scores.valid.all(1).tolist() == [True, False, True]


def test_neighbours_change_nothing(folder, scorer, videos):
    alone = torch.cat([scorer.score(videos[i : i + 1], PROMPTS[i : i + 1]).values for i in range(3)])
    together = scorer.score(videos, PROMPTS).values
    assert torch.equal(alone, together)  # by default one video a pass
    batched = VideoAlign(str(folder), dtype="float32", batch_size=3)
    padded = batched.score(videos, PROMPTS).values
    swapped = batched.score(videos[[2, 1]], [PROMPTS[2], PROMPTS[1]]).values
    print(f"batch of three: {(padded - alone).abs().max():.1e}")
    assert (padded - alone).abs().max() < 1e-5
    assert (swapped - alone[[2, 1]]).abs().max() < 1e-5


def break_one(scorer, monkeypatch, how):
    ask, judge = scorer._ask, scorer._judge

    def broken_ask(frames, text, size):
        if text == TEXTS[1] and how == "exception":
            raise RuntimeError("out of memory")
        question = ask(frames, text, size)
        if text == TEXTS[1] and how == "nan":
            question.pixels.fill_(float("nan"))
        return question

    def broken_judge(questions):
        if how == "pass" and any(len(q.tokens) == len(scorer._tokens(TEXTS[1], 280)) for q in questions):
            raise RuntimeError("out of memory")
        return judge(questions)

    monkeypatch.setattr(scorer, "_ask", broken_ask)
    monkeypatch.setattr(scorer, "_judge", broken_judge)


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("how", ["exception", "nan", "pass"])
def test_one_broken_video_is_masked(how, batch_size, folder, scorer, videos, monkeypatch, caplog):
    whole = scorer.score(videos, PROMPTS).values
    other = VideoAlign(str(folder), dtype="float32", batch_size=batch_size)
    break_one(other, monkeypatch, how)
    scores = other.score(videos, PROMPTS)
    assert scores.valid.tolist() == [[True] * 3, [False] * 3, [True] * 3]
    assert scores.values[1].isnan().all()
    assert (scores.values[[0, 2]] - whole[[0, 2]]).abs().max() < 1e-5
    if batch_size == 1:
        assert torch.equal(scores.values[[0, 2]], whole[[0, 2]])
    assert "video 1 of 3 is masked" in caplog.text


def test_what_breaks_all_videos_is_an_error(folder, scorer, videos, monkeypatch):
    new = VideoAlign(str(folder), dtype="float32")
    break_one(new, monkeypatch, "exception")
    with pytest.raises(RewardError, match="none of 1 videos: out of memory"):
        new.score(videos[1:2], PROMPTS[1:2])  # it has never scored any
    new.score(videos, PROMPTS)
    assert not new.score(videos[1:2], PROMPTS[1:2]).valid.any()  # others went well: this one is broken
    with pytest.raises(RewardError, match="none of 2 videos"):
        new.score(videos[[1, 1]], [PROMPTS[1]] * 2)
    for wrong in (videos.float(), videos[0], videos[..., :2], videos[:, :1]):
        with pytest.raises(RewardError, match="VideoAlign"):
            scorer.score(wrong, PROMPTS)
