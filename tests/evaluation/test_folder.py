"""A folder of videos with their prompts: broken ones are masked, the others keep their scores."""

import json
import math

import pytest
import torch

from evaluation.stand_ins import Rank
from rewards.clips import pan, written
from sage_grpo.config import ConfigError, RewardConfig
from sage_grpo.core.protocols import Prompt, Videos
from sage_grpo.data.prompts import PromptError
from sage_grpo.evaluation.folder import folder_scores, number, score_videos, summarise
from sage_grpo.evaluation.pictures import draw_distributions
from sage_grpo.evaluation.scorers import Scorer, ask, choose
from sage_grpo.evaluation.texts import NoPrompt, find_prompts
from sage_grpo.rewards.frames import Unscorable, VideoScorer
from sage_grpo.rewards.function import FunctionReward
from sage_grpo.rewards.motion import MotionReward
from sage_grpo.rewards.sharpness import SharpnessReward
from sage_grpo.videos import write_mp4


class ReadsPrompt(VideoScorer):
    names = ("words",)

    def score_video(self, frames, prompt):
        return [len(prompt.text.split())]

    @classmethod
    def tiny(cls):
        return cls()


def scorer(reward, **more):
    return Scorer(reward, RewardConfig(type=type(reward).__name__), tuple(reward.names), **more)


@pytest.fixture
def folder(tmp_path):
    for i, frames in enumerate((pan()[:, :64, :96], pan(4, 1)[:9, :48, :48], written("open"))):
        write_mp4(tmp_path / f"{i}.mp4", frames, scale=1)
    whole = (tmp_path / "0.mp4").read_bytes()
    (tmp_path / "torn.mp4").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.mp4").write_bytes(b"")
    (tmp_path / "text.mp4").write_text("no video")
    (tmp_path / "0.txt").write_text("a woman in uniform\n")
    return tmp_path


@pytest.mark.slow
def test_broken_videos_stop_no_other(folder):
    videos = sorted(folder.glob("*.mp4"))
    scorers = [scorer(SharpnessReward()), scorer(MotionReward()), scorer(ReadsPrompt())]
    progress = []
    prompts = find_prompts(videos, folder, None)
    rows = score_videos(videos, prompts, scorers, folder, emit=lambda *x: progress.append(x))
    by = {row.file: row for row in rows}
    assert list(by) == ["0.mp4", "1.mp4", "2.mp4", "empty.mp4", "text.mp4", "torn.mp4"]
    for name, reason in {"empty": "empty", "text": "damaged", "torn": "damaged"}.items():
        row = by[f"{name}.mp4"]
        assert not row.scores
        assert len(row.masked) == 6
        assert all(reason in message for message in row.masked.values())
    assert set(by["0.mp4"].scores) == {"sharpness", "dynamic", "acceleration", "cut", "flicker", "words"}
    assert by["0.mp4"].scores["words"] == 4
    assert by["1.mp4"].masked == {"words": "there is no prompt for it"}
    assert (by["1.mp4"].frames, by["1.mp4"].height, by["1.mp4"].width) == (9, 48, 48)
    alone = score_videos(videos[:1], prompts[:1], scorers, folder)[0]
    assert alone.scores == by["0.mp4"].scores
    assert progress[-1][:2] == (6, 6)
    summary = summarise(rows, ["words", "sharpness"])
    assert (summary["words"].scored, summary["words"].masked, summary["words"].sd) == (1, 5, None)
    assert summary["words"].reasons["there is no prompt for it"] == 2
    values = [by[f"{i}.mp4"].scores["sharpness"] for i in range(3)]
    assert summary["sharpness"].sd == pytest.approx(torch.tensor(values).double().std().item())
    written_out = json.loads(json.dumps(folder_scores(rows, scorers).to_json(), allow_nan=False))
    assert written_out["videos"] == len(written_out["rows"]) == 6
    assert list(written_out) == ["rewards", "videos", "summary", "rows"]
    assert written_out["rewards"][0] == {"type": "SharpnessReward", "scores": ["sharpness"]}
    assert list(written_out["summary"]["words"]) == ["scored", "masked", "mean", "sd", "min", "max", "reasons"]
    row = ["file", "prompt", "frames", "height", "width", "fps", "scores", "masked"]
    assert [list(written) for written in written_out["rows"]] == [row] * 6
    draw_distributions(folder / "x.png", rows, ["words", "sharpness", "dynamic", "cut"])
    assert (folder / "x.png").stat().st_size > 10_000


def test_a_scorer_that_fails_is_a_mask_with_its_error():
    class Fails(ReadsPrompt):
        def score_video(self, frames, prompt):
            raise RuntimeError("planted")

    class Never(ReadsPrompt):
        def score_video(self, frames, prompt):
            raise Unscorable("it has no cat in it")

    clip = Videos(pan(frames=2)[None])
    assert ask(scorer(Fails()), clip, [Prompt("x")])[0].masked == {"words": "RuntimeError: planted"}
    never = scorer(Never())
    for _ in range(2):  # the reason is there each time, though it is logged once
        assert ask(never, clip, [Prompt("x")])[0].masked == {"words": "it has no cat in it"}
        assert ask(never, clip, [NoPrompt()])[0].masked == {"words": "it has no cat in it"}
    infinite = FunctionReward(lambda videos, prompts: [math.inf], "big")
    assert ask(scorer(infinite), clip, [NoPrompt()])[0].masked == {"big": "the scorer gives no score for it"}


def test_scorers_that_compare_get_the_videos_of_one_prompt(tmp_path):
    for name, level in (("a-0", 1.0), ("a-1", 0.5), ("a-2", 0.8), ("b-0", 1.0)):
        write_mp4(tmp_path / f"{name}.mp4", (pan()[:4, :48, :64] * level).byte(), scale=1)
    (tmp_path / "prompts.txt").write_text("a\nb\n")
    videos = sorted(tmp_path.glob("*.mp4"))
    prompts = find_prompts(videos, tmp_path, tmp_path / "prompts.txt")
    rows = score_videos(videos, prompts, [scorer(Rank())], tmp_path)
    assert [row.scores.get("rank") for row in rows] == [2, 0, 1, None]
    assert rows[3].masked == {"rank": "it compares the videos of one prompt, and this one is alone"}
    bounded = score_videos(videos, prompts, [scorer(Rank())], tmp_path, megapixels=0.03)
    assert "above the limit of 0.03" in bounded[0].masked["rank"]
    none = score_videos(videos, [NoPrompt()] * 4, [scorer(Rank())], tmp_path)
    assert "there is no prompt for it" in none[0].masked["rank"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("p.csv", 'file,prompt,text\nb/2.mp4,a dog,x\n1.mp4,"a cat, grey",y\n'),
        ("p.jsonl", '{"video": "b/2.mp4", "prompt": "a dog"}\n{"video": "1", "prompt": "a cat, grey"}\n'),
        ("p.txt", "1.mp4\ta cat, grey\nb/2.mp4\ta dog\nother.mp4\tnobody\n"),
    ],
)
def test_prompts_by_the_name_of_the_file(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    videos = [tmp_path / "1.mp4", tmp_path / "b" / "2.mp4", tmp_path / "3.mp4"]
    prompts = find_prompts(videos, tmp_path, tmp_path / name)
    assert [p.text for p in prompts[:2]] == ["a cat, grey", "a dog"]
    assert isinstance(prompts[2], NoPrompt)
    if name == "p.csv":
        assert prompts[0].columns["text"] == "y"


def test_a_file_without_a_row_for_any_video_is_a_mistake(tmp_path):
    (tmp_path / "p.txt").write_text("a cat\n")
    with pytest.raises(PromptError, match=r"no row is for one of the 1 videos, such as 1.mp4; put the file's name"):
        find_prompts([tmp_path / "1.mp4"], tmp_path, tmp_path / "p.txt")


@pytest.mark.slow
def test_choice_of_scorers(tmp_path):
    everything = choose([], None)
    assert {"dynamic", "sharpness"} <= set(everything.keys)
    assert everything.left_out["shapes"] == "for the laboratory only"
    assert everything.left_out["videoalign"] == "needs path: use --rewards"
    assert [scorer.weights for scorer in choose(["motion"], None).members] == [None]
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        "rewards: [{type: motion, options: {combined: true}, weights: {motion: 2}}, {type: sharpness}]\n"
        "monitors: [{type: sharpness, options: {natural: 100}}]\n"
    )
    scorers = choose([], recipe)
    assert scorers.keys == ["motion", "sharpness.sharpness", "sharpness.sharpness.3"]
    assert [scorer.weights for scorer in scorers.members] == [(2.0,), (1.0,), None]
    recipe.write_text("seed: 1\n")
    with pytest.raises(ConfigError, match="names no rewards"):
        choose([], recipe)
    with pytest.raises(ConfigError, match="did you mean 'motion'"):
        choose(["motoin"], None)


def test_numbers_are_short():
    assert [number(x) for x in (None, 0.0, -0.0, 1234.5, -0.12345)] == ["–", "0", "0", "1.23e+03", "−0.123"]
