"""`sage-grpo rewards score` reads files with their sound for scorers that hear, and for no other."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from evaluation.listeners import ComparingEars, Ears, Eyes
from rewards.heard import RATE, moving_from, tone_from
from sage_grpo.cli import app
from sage_grpo.config import RewardConfig
from sage_grpo.core.protocols import Prompt, Videos
from sage_grpo.evaluation import clips
from sage_grpo.evaluation.clips import as_shown, listen, open_video
from sage_grpo.evaluation.folder import score_videos
from sage_grpo.evaluation.scorers import NO_SOUND, UNLIKE, Scorer, ask, joined
from sage_grpo.rewards.function import FunctionReward
from sage_grpo.videos import SoundTrack, read_sound, write_mp4

SAMPLE_RATE = 16_000
EARLY, LATER = 5, 15  # frames


def scorer(reward):
    return Scorer(reward, RewardConfig(type=type(reward).__name__), tuple(reward.names))


def film(path, motion, sound):
    """Something moves from one frame on, and sounds from another (none: has no sound)."""
    track = None if sound is None else SoundTrack(tone_from((sound + 0.5) / RATE).numpy(), SAMPLE_RATE)
    write_mp4(path, moving_from(motion), RATE, scale=1, sound=track)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    films = {"a": (EARLY, EARLY), "b": (LATER, LATER), "c-apart": (EARLY, LATER), "d-silent": (EARLY, None)}
    for name, (motion, sound) in films.items():
        film(tmp_path / "films" / f"{name}.mp4", motion, sound)
    return tmp_path / "films"


def scored(folder, *rewards):
    names = [word for name in rewards for word in ("--reward", name)]
    done = CliRunner().invoke(app, ["rewards", "score", str(folder), *names, "--json"], env={"NO_COLOR": "1"})
    assert done.exit_code == 0, done.output
    return {row["file"].removesuffix(".mp4"): row for row in json.loads(done.stdout)["rows"]}


@pytest.mark.slow
def test_each_file_is_heard_with_its_own_sound(folder):
    rows = scored(folder, "synchrony", "sharpness")
    assert rows["a"]["scores"]["synchrony"] > 0.9
    assert rows["b"]["scores"]["synchrony"] > 0.9
    assert rows["c-apart"]["scores"]["synchrony"] < 0.1
    assert rows["d-silent"]["masked"] == {"synchrony": NO_SOUND}
    assert "synchrony" not in rows["d-silent"]["scores"]
    alone = scored(folder, "sharpness")
    assert all(row["scores"]["sharpness"] == alone[name]["scores"]["sharpness"] for name, row in rows.items())


@pytest.mark.slow
def test_a_sound_that_cannot_be_read_is_no_matter_to_those_that_do_not_hear(folder, monkeypatch):
    def broken(path, limit):
        raise ValueError("no such codec")

    monkeypatch.setattr(clips, "read_sound", broken)
    rows = scored(folder, "synchrony", "sharpness")
    for row in rows.values():
        assert row["masked"] == {"synchrony": "its sound cannot be decoded (no such codec)"}
        assert list(row["scores"]) == ["sharpness"]
    assert all(row["scores"] for row in scored(folder, "sharpness").values())  # it is not even read


def test_who_is_given_what(folder):
    paths = [folder / "a.mp4", folder / "b.mp4", folder / "d-silent.mp4"]
    prompts = [Prompt("x"), Prompt("x"), Prompt("y")]
    for kind in (Ears, Eyes, ComparingEars):
        kind.given.clear()
    rows = score_videos(paths, prompts, [scorer(Ears()), scorer(Eyes()), scorer(ComparingEars())], folder)
    for path, (videos, _), (seen, _) in zip(paths, Ears.given, Eyes.given, strict=True):
        sound, frames = read_sound(path), open_video(path).frames[None]
        assert torch.equal(videos.frames, frames)
        assert torch.equal(seen.frames, frames)
        assert (seen.frame_rate, seen.sound, seen.sample_rate) == (None, None, None)
        if sound:
            assert np.array_equal(videos.sound[0].numpy(), sound.wave)
            assert (videos.frame_rate, videos.sample_rate) == (RATE, sound.rate)
    assert Ears.given[2][0].sound is None
    ((group, texts),) = ComparingEars.given
    assert texts == ["x", "x"]
    assert torch.equal(group.sound, torch.cat([videos.sound for videos, _ in Ears.given[:2]]))
    assert [list(row.scores) for row in rows] == [["loud", "seen", "louder"]] * 2 + [["seen"]]


def test_sounds_that_differ_in_length_are_not_compared(folder):
    write_mp4(
        folder / "b.mp4", moving_from(9), RATE, scale=1, sound=SoundTrack(tone_from(1.0, length=1.5).numpy(), 16_000)
    )
    paths = [folder / "a.mp4", folder / "b.mp4"]
    rows = score_videos(paths, [Prompt("x")] * 2, [scorer(ComparingEars())], folder)
    assert [row.masked for row in rows] == [{"louder": UNLIKE}] * 2


def test_a_function_that_hears_is_masked_with_a_reason():
    loud = scorer(FunctionReward(lambda videos, prompts, sound: [wave.max().item() for wave in sound], "loud"))
    frames = moving_from(3)[None]
    assert ask(loud, Videos(frames), [Prompt("x")])[0].masked == {"loud": NO_SOUND}
    heard = Videos(frames, RATE, torch.full((1, 1, 8), 0.5), 100)
    assert ask(loud, heard, [Prompt("x")])[0].scores == {"loud": 0.5}
    told = ask(loud, heard, [Prompt("x")], unheard="it is torn")[0]
    assert (told.scores, told.masked) == ({}, {"loud": "it is torn"})


def test_videos_are_joined_with_sound_only_where_all_are_alike():
    one = Videos(moving_from(3)[None], RATE, torch.ones(1, 1, 8), 100)
    both = joined([one, one])
    assert (both.sound.shape, both.frame_rate, both.sample_rate) == ((2, 1, 8), RATE, 100)
    for other in (
        Videos(one.frames, RATE),
        Videos(one.frames, RATE, torch.ones(1, 1, 9), 100),
        Videos(one.frames, RATE, torch.ones(1, 1, 8), 200),
        Videos(one.frames, 24.0, torch.ones(1, 1, 8), 100),
    ):
        mixed = joined([one, other])
        assert mixed.sound is None
        assert len(mixed.frames) == 2


def test_a_sound_too_long_for_the_memory_is_refused(folder, monkeypatch):
    path = folder / "a.mp4"
    seen = as_shown(open_video(path))
    assert listen(path, seen).sound.numel() == 3 * 48_000
    monkeypatch.setattr(clips, "SAMPLES", 3 * 48_000 - 1024)
    with pytest.raises(clips.Unreadable, match=r"its sound cannot be decoded .its sound has more than 142,976 numbers"):
        listen(path, seen)
    picture = folder / "x.png"
    assert listen(picture, seen) is seen  # pictures have none, and are not asked
