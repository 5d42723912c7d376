"""The audit of scorers that hear: degraded sound is found where the truth is known, and is nothing to the others."""

import json

import pytest
import torch
from typer.testing import CliRunner

from rewards.heard import RATE, moving_from, tone_from
from sage_grpo.cli import app
from sage_grpo.config import RewardConfig
from sage_grpo.core.protocols import Prompt, Videos
from sage_grpo.core.scores import Scores
from sage_grpo.evaluation.audit import natural
from sage_grpo.evaluation.audit.audit import Clip, audit
from sage_grpo.evaluation.audit.degrade_sound import SOUND_DEGRADATIONS
from sage_grpo.evaluation.clips import Unreadable
from sage_grpo.evaluation.pictures import markdown
from sage_grpo.evaluation.scorers import Scorer, Scorers
from sage_grpo.rewards.frames import VideoScorer
from sage_grpo.rewards.sound import SoundScorer
from sage_grpo.rewards.synchrony import SynchronyReward
from sage_grpo.videos import SoundTrack, write_mp4

SAMPLE_RATE = 16_000


def heard(start):
    """A square that begins to move at that frame, with a tone that begins then."""
    return Videos(moving_from(start)[None], RATE, tone_from((start + 0.5) / RATE)[None], SAMPLE_RATE)


def clip(start):
    return Clip(f"clip {start}", Prompt("x"), lambda: moving_from(start), lambda: heard(start))


CLIPS = [clip(start) for start in (4, 6, 9, 12)]


class Hears(SoundScorer):
    """Two scores whose weaknesses are known: how loud it is, and how little there is to hear in its first half."""

    names = ("loud", "first")

    def score_clip(self, clip, prompt):
        half = clip.wave[:, : clip.wave.shape[1] // 2]
        return [clip.wave.abs().mean().item(), -half.abs().mean().item()]

    @classmethod
    def tiny(cls):
        return cls()


class Sees(VideoScorer):
    names = ("light",)

    def score_video(self, frames, prompt):
        return [frames.double().mean().item()]

    @classmethod
    def tiny(cls):
        return cls()


def scorer(reward, *weights):
    return Scorer(reward, RewardConfig(type=type(reward).__name__), tuple(reward.names), weights or None)


def test_known_weaknesses_are_found():
    progress = []
    result = audit(CLIPS, Scorers([scorer(Hears())]), ["static"], emit=lambda *x: progress.append(x))
    assert result.degradations == ["static"]
    assert result.sounds == list(SOUND_DEGRADATIONS)
    verdicts = {name: cell.verdict for name, cell in result.cells["loud"].items()}
    assert list(verdicts) == ["static", *SOUND_DEGRADATIONS]
    assert verdicts["static"] == "blind"  # it does not look
    assert {name for name, verdict in verdicts.items() if verdict == "caught"} >= {"muted", "faint-40dB", "faint-20dB"}
    assert {"clipped-30dB", "hiss-0dB"} <= set(result.those("loud", "gamed"))
    assert "muted" in result.those("first", "gamed")
    assert result.cells["first"]["early-0.25s"].verdict == "caught"
    assert progress[-1][:2] == (4 * 13, 4 * 13)
    assert audit(CLIPS, Scorers([scorer(Hears())]), ["static"]).to_json() == result.to_json()


def test_synchrony_sees_silence_and_shifts():
    result = audit(CLIPS, Scorers([scorer(SynchronyReward())]), ["static"])
    assert result.natural["synchrony"].mean > 0.9
    for name in ("static", "muted", "late-0.5s", "late-0.25s", "early-0.25s"):
        assert result.cells["synchrony"][name].verdict == "caught", name
    values = result.values["synchrony"]["clip 9"]
    assert len(values) == 1 + 1 + len(SOUND_DEGRADATIONS)
    assert values[2 + list(SOUND_DEGRADATIONS).index("muted")] == 0
    assert values[2 + list(SOUND_DEGRADATIONS).index("faint-20dB")] == pytest.approx(values[0], abs=0.02)


def test_those_that_do_not_hear_are_audited_as_without_the_others():
    names = ["static", "blur", "noise"]
    alone = audit(CLIPS, Scorers([scorer(Sees())]), names)
    beside = audit(CLIPS, Scorers([scorer(Sees()), scorer(Hears())]), names)
    assert beside.natural["light"] == alone.natural["light"]
    assert beside.cells["light"] == alone.cells["light"]
    assert beside.values["light"] == alone.values["light"]
    assert list(beside.cells["light"]) == names
    assert markdown(beside).startswith(markdown(alone))
    assert "sounds" not in alone.to_json()
    assert beside.to_json()["sounds"] == list(SOUND_DEGRADATIONS)
    first, second = markdown(beside).split("\n\n")
    assert [line.split(" | ")[0] for line in first.splitlines()[2:]] == ["| `light`", "| `loud`", "| `first`"]
    assert [line.split(" | ")[0] for line in second.splitlines()[2:]] == ["| `loud`", "| `first`"]
    assert second.splitlines()[0] == f"| score | clips | {' | '.join(SOUND_DEGRADATIONS)} |"


def test_a_sum_with_a_part_that_hears_is_audited_on_spoilt_sound():
    """What does not hear is as on the clip: of a degraded sound the sum has the change of the part that hears."""
    result = audit(CLIPS, Scorers([scorer(Sees(), 2.0), scorer(Hears(), 3.0, 0.0)]), ["static"])
    for i, name in enumerate(SOUND_DEGRADATIONS, 2):
        for clip in result.clips:
            loud, total = result.values["loud"][clip], result.values["sum"][clip]
            assert total[i] - total[0] == pytest.approx(3 * (loud[i] - loud[0])), name
    assert set(result.cells["sum"]) == {"static", *SOUND_DEGRADATIONS}
    deaf = audit(CLIPS, Scorers([scorer(Sees(), 1.0), scorer(Hears())]), ["static"])
    assert deaf.keys == ["light", "loud", "first"]


def test_without_a_sound_it_is_masked_and_never_a_number():
    silent = Clip("silent", Prompt("x"), lambda: moving_from(5), lambda: Videos(moving_from(5)[None], RATE))
    never = Clip("never", Prompt("x"), lambda: moving_from(5))
    result = audit([silent, never], Scorers([scorer(Sees()), scorer(Hears())]), ["static"])
    assert result.scored == ["light"]
    assert result.masked["loud"] == {"it has no sound": 4}  # two clips and their copies; there is no sound to degrade
    assert result.heard == []
    assert markdown(result).count("| score |") == 1


def test_a_sound_that_cannot_be_read_is_no_matter_to_others():
    def torn():
        raise Unreadable("its sound is torn")

    broken = Clip("broken", Prompt("x"), lambda: moving_from(5), torn)
    result = audit([*CLIPS[:2], broken], Scorers([scorer(Sees()), scorer(Hears())]), ["static"])
    assert result.natural["light"].clips == 3
    assert result.natural["loud"].clips == 2
    assert result.masked == {key: {"its sound is torn": 2} for key in ("loud", "first")}
    assert not result.unreadable


class Louder(SoundScorer):
    """Compares: how far each is from the loudest."""

    names, groupwise = ("louder",), True

    def submit(self, videos, prompts):
        loud = torch.zeros(len(videos)) if videos.sound is None else videos.sound.abs().mean((1, 2))
        values = (loud - loud.max()).double()[:, None]
        return lambda: Scores(values, torch.full_like(values, videos.sound is not None, dtype=torch.bool))

    def score_clip(self, clip, prompt):
        raise NotImplementedError

    @classmethod
    def tiny(cls):
        return cls()


def test_those_that_compare_hear_all_clips_spoilt_alike():
    result = audit(CLIPS, Scorers([scorer(Louder())]), ["static"])
    values = result.values["louder"]["clip 4"]
    loud = [heard(start).sound.abs().mean().item() for start in (4, 6, 9, 12)]
    assert values[0] == pytest.approx(sum(loud) / 4 - max(loud), abs=1e-6)
    assert values[2 + list(SOUND_DEGRADATIONS).index("muted")] == 0
    assert values[2 + list(SOUND_DEGRADATIONS).index("faint-20dB")] == pytest.approx(values[0] / 10, abs=1e-6)


def invoke(*arguments):
    words = ["rewards", "audit", *map(str, arguments)]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "80", "NO_COLOR": "1"})
    assert done.exit_code == 0, done.output
    return done


@pytest.mark.slow
def test_the_command_on_clips_made_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chosen = {name: scene for name, scene in natural.scenes().items() if name in ("crossing", "sign")}
    monkeypatch.setattr(natural, "scenes", lambda: chosen)
    done = invoke("--reward", "sharpness", "--reward", "synchrony", "--out", "both")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert f"{len(SOUND_DEGRADATIONS)} of their sound" in done.stdout
    written = {path.name for path in (tmp_path / "both").iterdir()}
    assert written == {"audit.json", "audit.md", "audit.png", "copies.png", "sounds.png"}
    found = json.loads((tmp_path / "both" / "audit.json").read_text())
    cells = found["cells"]["synchrony"]
    for name in ("muted", "late-0.5s", "late-0.25s", "late-0.1s", "early-0.25s"):
        assert cells[name]["verdict"] == "caught", name
    assert found["natural"]["synchrony"]["mean"] > 0.8
    assert found["values"]["synchrony"]["sign"][15] == 0  # muted
    assert "muted" not in found["cells"]["sharpness"]
    invoke("--reward", "sharpness", "--out", "alone")
    assert {path.name for path in (tmp_path / "alone").iterdir()} == written - {"sounds.png"}
    alone = json.loads((tmp_path / "alone" / "audit.json").read_text())
    for part in ("natural", "cells", "values", "scores"):
        assert found[part]["sharpness"] == alone[part]["sharpness"]
    assert (tmp_path / "both" / "audit.md").read_text().startswith((tmp_path / "alone" / "audit.md").read_text())


@pytest.mark.slow
def test_the_command_on_files(tmp_path, monkeypatch):
    """Each with its own sound; one has none, and is masked."""
    monkeypatch.chdir(tmp_path)
    for start in (4, 9, 14):
        track = SoundTrack(tone_from((start + 0.5) / RATE).numpy(), SAMPLE_RATE)
        write_mp4(tmp_path / "films" / f"{start}.mp4", moving_from(start), RATE, scale=1, sound=track)
    write_mp4(tmp_path / "films" / "silent.mp4", moving_from(7), RATE, scale=1)
    found = json.loads(invoke("films", "--reward", "synchrony", "--json").stdout)
    assert found["natural"]["synchrony"]["clips"] == 3
    assert found["natural"]["synchrony"]["mean"] > 0.9
    assert all(value is None for value in found["values"]["synchrony"]["films/silent.mp4"])
    assert found["masked"]["synchrony"] == {"it has no sound": 15}
    assert found["cells"]["synchrony"]["muted"]["verdict"] == "caught"
