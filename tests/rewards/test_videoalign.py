"""VideoAlign gives the original's numbers, from the original's file, and a video that fails takes nothing with it."""

import json
import os
import pickle
import sys

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from sage_grpo import build
from sage_grpo.cli import app
from sage_grpo.config import ConfigError, load_recipe
from sage_grpo.config.load import shipped_recipes
from sage_grpo.core.protocols import Prompt
from sage_grpo.rehearse import Rehearsal, find_rewards
from sage_grpo.rewards import videoalign, videoalign_convert
from sage_grpo.rewards.errors import MissingWeights, RewardError
from sage_grpo.rewards.qwen_video import frame_indices, frame_size, resize
from sage_grpo.rewards.videoalign import VideoAlign
from sage_grpo.rewards.videoalign_convert import convert
from videoalign_original import RUBRIC, Original, config, release, weights

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
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("videoalign")
    source, _ = release(place, weights(1))
    convert(source, place / "converted")
    return place / "converted"


@pytest.fixture(scope="module")
def scorer(folder):
    return VideoAlign(str(folder), dtype="float32")


@pytest.fixture
def source(tmp_path):
    return release(tmp_path, weights(1))[0]


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
    state = {name.replace("base_model.model.", "").replace(".base_layer", ""): value
             for name, value in weights(1).items() if ".lora_" not in name}  # fmt: skip
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config().save_pretrained(tmp_path)
    loaded = Subclass.from_pretrained(tmp_path)  # does not raise: the trap
    assert not torch.equal(loaded.model.language_model.layers[0].self_attn.q_proj.weight,
                           state["model.layers.0.self_attn.q_proj.weight"])  # fmt: skip
    monkeypatch.setattr(videoalign, "Qwen2VLModel", Subclass)
    with pytest.raises(RewardError, match="does not hold this network"):
        VideoAlign(str(folder))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("base_model.model.visual.blocks.1.norm1.bias"), "1 of .* tensors are missing"),
        (lambda s: s.pop("base_model.model.model.layers.1.mlp.up_proj.base_layer.weight"), "nothing to be added to"),
        (
            lambda s: s.pop("base_model.model.model.layers.1.mlp.up_proj.lora_B.default.weight"),
            "nothing to be added to",
        ),
        (lambda s: s.pop("base_model.model.rm_head.weight"), "rm_head.weight should be"),
        (
            lambda s: s.update({"base_model.model.model.extra.weight": torch.ones(1)}),
            "not of this network, e.g. language",
        ),
        (lambda s: s.update({"base_model.model.model.norm.weight": torch.ones(3)}), "another shape"),
        (lambda s: s.update({"base_model.model.rm_head.weight": torch.ones(4, 64)}), "rm_head.weight should be"),
        (lambda s: s.update({"step": 3}), "not a dictionary of tensors"),
    ],
)
def test_every_tensor_has_its_place(change, message, tmp_path):
    state = weights(1)
    change(state)
    place, _ = release(tmp_path, state)
    with pytest.raises(RewardError, match=message):
        convert(place, tmp_path / "converted")
    assert not (tmp_path / "converted").exists()


@pytest.mark.parametrize(
    ("total", "fps", "count"),
    [
        (81, 24, 6), (81, 16, 10), (121, 24, 10), (49, 8, 12), (100, 10, 20), (240, 24, 20),
        (17, 24, 4), (5, 24, 4), (4, 24, 4),  # at least four …
        (3, 24, 2), (2, 24, 2),  # … of those there are
        (54, 12, 8), (84, 24, 8),  # 9 and 7 go to the even multiple of two, as Python rounds
        (10000, 24, 768),
    ],
)  # fmt: skip
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
        ((352, 624), (336, 588)), ((480, 832), (336, 588)), ((720, 1280), (336, 588)), ((56, 84), SIZE),
        ((448, 448), (448, 448)), ((336, 588), (336, 588)), ((316, 316), (336, 336)), ((320, 512), (308, 504)),
    ],
)  # fmt: skip
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


class Opens:
    """A pickle that makes a file when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def plain_pickle(value, path):
    path.write_bytes(pickle.dumps(value, protocol=2))


@pytest.mark.parametrize("save", [torch.save, plain_pickle])
def test_a_pickle_that_runs_code_is_refused(save, source, tmp_path):
    save({"a": Opens(tmp_path / "ran")}, source / "checkpoint-11352" / "model.pth")
    with pytest.raises(RewardError, match=r"model\.pth is refused: it holds more than tensors"):
        convert(source, tmp_path / "converted")
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "converted").exists()


def test_no_pickle_at_run_time(folder, monkeypatch):
    monkeypatch.setattr(torch, "load", lambda *a, **k: pytest.fail("unpickled"))
    VideoAlign(str(folder))
    assert {path.suffix for path in folder.iterdir()} <= {".json", ".safetensors", ".txt", ".jinja"}


def test_convert_writes_whole_or_nothing(source, tmp_path, monkeypatch):
    def full_disk(*args, **kwargs):
        raise OSError("no space left")

    monkeypatch.setattr(videoalign_convert, "save_file", full_disk)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(OSError, match="no space"):
        convert(source, tmp_path / "converted")
    assert sorted(tmp_path.iterdir()) == before


def test_convert_keeps_half_precision_if_asked(source, tmp_path):
    convert(source, tmp_path / "converted", dtype="bfloat16")
    state = load_file(tmp_path / "converted" / "model.safetensors")
    assert {str(v.dtype) for n, v in state.items() if n != "rm_head.weight"} == {"torch.bfloat16"}
    assert state["rm_head.weight"].dtype == torch.float32


def run(*arguments):
    result = CliRunner().invoke(app, ["rewards", "convert", *map(str, arguments)])
    return result.exit_code, " ".join((result.output + (result.stderr or "")).split())


def test_command(source, tmp_path):
    code, text = run(source, tmp_path / "made", "--json")
    assert code == 0, text
    settings = json.loads((tmp_path / "made" / "videoalign.json").read_text())
    assert settings["normalisation"]["MQ"] == [1.1646, 1.3811]
    assert list(settings["source"]) == ["model.pth"]
    assert len(settings["source"]["model.pth"]) == 64
    assert (tmp_path / "made" / "rubric.txt").read_bytes().decode() == RUBRIC
    code, text = run(source, tmp_path / "made")
    assert (code, "is there already" in text) == (2, True)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda s: (s / "model_config.json").unlink(), "no model_config.json"),
        (lambda s: (s / "checkpoint-11352" / "model.pth").unlink(), "no checkpoint-N with model.pth"),
        (lambda s: (s / "checkpoint-11352" / "model.pth").write_bytes(b"PK\x03\x04"), "downloaded whole"),
        (lambda s: (s.parents[1] / "prompt_template.py").unlink(), "name your copy with --rubric"),
        (lambda s: (s.parents[1] / "prompt_template.py").write_text("X = 1"), "has no DETAILED_PROMPT"),
        (lambda s: (s / "prompt_template.py").write_text("DETAILED_PROMPT_WITH_SPECIAL_TOKEN = 'x'"), "once each"),
        (lambda s: (s / "model_config.json").write_text('{"data_config": {"num_frames": 8}}'), "num_frames is 8"),
        (lambda s: (s / "model_config.json").write_text("{}"), "no peft_lora_config.lora_alpha"),
    ],
)
def test_command_tells_what_is_wrong(spoil, message, source, tmp_path):
    spoil(source)
    code, text = run(source, tmp_path / "made")
    assert code == 2, text
    assert message in text
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, ConfigError, "missing a required argument: 'path'"),
        ({"path": "x", "fpss": 3}, ConfigError, "unexpected keyword argument 'fpss'"),
        ({"path": "nowhere"}, MissingWeights, "sage-grpo rewards convert SOURCE nowhere"),
        ({"path": "."}, RewardError, "is not converted yet"),
        ({"path": "{folder}", "dtype": "float8"}, RewardError, "float32 or bfloat16"),
        ({"path": "{folder}", "device": "nonsense"}, RewardError, "cannot be put on device 'nonsense'"),
        ({"path": "{folder}", "fps": 0}, RewardError, "fps > 0"),
    ],
)
def test_options(options, error, message, folder):
    options = {key: str(folder) if value == "{folder}" else value for key, value in options.items()}
    recipe = load_recipe("lab", []).model_dump() | {"rewards": [{"type": "videoalign", "options": options}]}
    with pytest.raises(error, match=message):
        build.build_rewards(load_recipe(recipe))


def test_a_missing_library_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("sage_grpo.rewards.videoalign")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(ConfigError, match=r"reward 'videoalign' needs accelerate: pip install 'sage-grpo\[models\]'"):
        build.resolve("videoalign", build.REWARDS, "reward")


@pytest.mark.parametrize("weights", [{"VQ": 1.0, "MQ": 0.5, "TA": 2.0}, {}])
def test_a_rehearsal_does_without_the_checkpoint_and_says_so(weights):
    entry = {"type": "videoalign", "weights": weights, "options": {"path": "nowhere", "device": "cuda"}}
    told = Rehearsal("x")
    (part,), given = find_rewards(load_recipe(load_recipe("lab", []).model_dump() | {"rewards": [entry]}), told)
    assert tuple(part.names) == ("VQ", "MQ", "TA")
    assert given == tuple(weights.values() or (1.0, 1.0, 1.0))
    assert "nowhere is not there" in told.stand_ins[0]


def test_a_rehearsal_uses_the_checkpoint_where_there_is_one(folder):
    entry = {"type": "videoalign", "options": {"path": str(folder), "device": "cuda"}}
    told = Rehearsal("x")
    (part,), _ = find_rewards(load_recipe(load_recipe("lab", []).model_dump() | {"rewards": [entry]}), told)
    assert isinstance(part.rewards[0], VideoAlign)
    assert not told.stand_ins


def test_shipped_recipes_use_it():
    used = [
        recipe for name in shipped_recipes() for recipe in load_recipe(name, []).rewards if recipe.type == "videoalign"
    ]
    assert len(used) >= 7
    for entry in used:
        assert set(entry.weights) == {"VQ", "MQ", "TA"}
        assert entry.options["fps"] in (16, 24)
