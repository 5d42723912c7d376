"""`sage-grpo eval` on a model with sound: scorers that hear are given what the model made, to the last bit."""

import json
import shutil
from dataclasses import replace
from hashlib import sha256

import av
import numpy as np
import pytest
import torch
import yaml
from typer.testing import CliRunner

from evaluation.listeners import ComparingEars, Ears, Eyes
from sage_grpo.cli import app
from sage_grpo.core.protocols import Prompt
from sage_grpo.core.sampler import generate
from sage_grpo.evaluation.videos import Folder, Record, hash_of_sound, load_sound, lossless, noise_seed, read_record
from sage_grpo.inference.sample import open_source
from sage_grpo.registry import resolve_model
from sage_grpo.rewards.synchrony import SynchronyReward
from sage_grpo.videos import SoundTrack, read_mp4

pytestmark = pytest.mark.slow

TEXTS = ("a dog barks", "a door slams")
SEEDS = (0, 1)


def evaluated(*arguments):
    done = CliRunner().invoke(app, ["eval", *map(str, arguments), "--json"], env={"COLUMNS": "80", "NO_COLOR": "1"})
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout.splitlines()[-1])


def read_frames(path):
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    pytest.importorskip("diffusers")
    from sage_grpo.models import contract

    folder, adapter = tmp_path_factory.mktemp("sound"), resolve_model("ltx2")
    frames, height, width = adapter.tiny_size
    model = {"type": "ltx2", "path": contract.make_checkpoint(adapter, folder / "model")}
    model |= {"frames": frames, "height": height, "width": width, "options": dict(adapter.tiny_options)}
    (folder / "prompts.txt").write_text("\n".join(TEXTS) + "\n")
    scorers = [f"evaluation.listeners:{name}" for name in ("Ears", "ComparingEars", "Eyes")]
    content = {"model": model, "sampling": {"steps": 2}, "rewards": [{"type": "synchrony"}]}
    content["monitors"] = [{"type": name} for name in scorers]
    (folder / "recipe.yaml").write_text(yaml.safe_dump(content))
    return folder / "recipe.yaml"


def call(recipe, out):
    return f"base={recipe}", "--prompts", recipe.parent / "prompts.txt", "--seeds", len(SEEDS), "--out", out


@pytest.fixture(scope="module")
def whole(recipe, tmp_path_factory):
    """An evaluation, and what its scorers were given."""
    out = tmp_path_factory.mktemp("whole") / "eval"
    for scorer in (Ears, ComparingEars, Eyes):
        scorer.given.clear()
    results = evaluated(*call(recipe, out))
    return out, results, {scorer: list(scorer.given) for scorer in (Ears, ComparingEars, Eyes)}


@pytest.fixture(scope="module")
def made(recipe):
    """The same videos straight from the model, never in a file."""
    source = open_source(recipe)
    with torch.no_grad():
        return {
            (text, seed): source.model.render(
                generate(source.model, [Prompt(text)], source.config, [noise_seed(Prompt(text), seed)])
            )
            for text in TEXTS
            for seed in SEEDS
        }


def test_those_that_hear_are_given_the_sound_that_was_made(whole, made):
    """Of each video its own: all sounds differ."""
    given = {(text, seed): videos for (videos, (text,)), seed in zip(whole[2][Ears], SEEDS * 2, strict=True)}
    assert list(given) == [(text, seed) for text in TEXTS for seed in SEEDS]
    for key, videos in given.items():
        assert torch.equal(videos.sound, made[key].sound)
        assert torch.equal(videos.frames, made[key].frames)
        assert (videos.frame_rate, videos.sample_rate) == (made[key].frame_rate, made[key].sample_rate) == (24, 400)
    assert len({videos.sound.numpy().tobytes() for videos in given.values()}) == 4


def test_those_that_compare_hear_all_of_a_prompt(whole, made):
    given = {texts[0]: (videos, texts) for videos, texts in whole[2][ComparingEars]}
    for text in TEXTS:
        videos, texts = given[text]
        assert texts == [text] * 2
        assert torch.equal(videos.sound, torch.cat([made[text, seed].sound for seed in SEEDS]))


def test_those_that_do_not_hear_are_given_frames_alone(whole, made):
    for (videos, (text,)), seed in zip(whole[2][Eyes], SEEDS * 2, strict=True):
        assert torch.equal(videos.frames, made[text, seed].frames)
        assert (videos.frame_rate, videos.sound, videos.sample_rate) == (None, None, None)


def test_the_mean_is_that_of_the_videos_as_they_were_made(whole, made):
    scores = [SynchronyReward().submit(videos, [Prompt("")])().values.item() for videos in made.values()]
    mean = whole[1]["means"]["base"]["synchrony"]
    assert (mean["videos"], mean["masked"]) == (4, 0)
    assert mean["mean"] == pytest.approx(np.mean(scores), abs=1e-12)


def test_a_finished_one_makes_and_asks_nothing(recipe, whole, monkeypatch):
    monkeypatch.setattr("sage_grpo.evaluation.videos.open_source", None)
    monkeypatch.setattr("sage_grpo.evaluation.scores.ask", None)
    assert evaluated(*call(recipe, whole[0])) == whole[1]


def test_records_from_before_there_was_sound_are_read(whole):
    row = json.loads(Folder(whole[0]).record("base", "0", 0).read_text())
    with_sound = Record.from_json(row)
    del row["sound"]
    before = Record.from_json(row)
    assert before.sound is None
    assert before.shown(True) == before.shown(False) == with_sound.shown(False) == row["frames"]
    assert with_sound.shown(True) != row["frames"]


def test_a_damaged_one_is_made_again_with_the_same_sound(recipe, whole, tmp_path):
    out = tmp_path / "eval"
    shutil.copytree(whole[0], out)
    victim = Folder(out).frames("base", "1", 0)
    victim.write_bytes(victim.read_bytes()[:-9])
    assert evaluated(*call(recipe, out)) | {"out": ""} == whole[1] | {"out": ""}
    assert victim.read_bytes() == Folder(whole[0]).frames("base", "1", 0).read_bytes()


def test_another_sound_is_heard_anew_and_seen_by_nobody(recipe, whole, tmp_path):
    """The record says that the sound is another one: scorers that hear are asked for this video, others are not."""
    out = tmp_path / "eval"
    shutil.copytree(whole[0], out)
    folder, place = Folder(out), ("base", "0", 1)
    record = read_record(folder, *place)
    other = SoundTrack(0.5 * load_sound(folder, *place, record.sound.samples).wave, 400)
    data = lossless(torch.from_numpy(read_frames(folder.frames(*place))), other, 24.0)
    folder.frames(*place).write_bytes(data)
    files = record.files | {folder.frames(*place).relative_to(out).as_posix(): sha256(data).hexdigest()}
    heard = replace(record.sound, samples=hash_of_sound(other))
    folder.record(*place).write_text(json.dumps(replace(record, files=files, sound=heard).to_json()))
    for scorer in (Ears, Eyes):
        scorer.given.clear()
    results = evaluated(*call(recipe, out))
    assert [texts for _, texts in Ears.given] == [[TEXTS[0]]]
    assert np.array_equal(Ears.given[0][0].sound[0].numpy(), other.wave)
    assert not Eyes.given
    assert results["means"]["base"]["loud"]["mean"] < whole[1]["means"]["base"]["loud"]["mean"]


def test_mp4_files_to_look_at_have_sound_and_can_be_scored(whole):
    """As `rewards score` reads them: AAC changes little of what synchrony hears."""
    out = whole[0]
    assert len(read_mp4(out / "videos" / "base" / "0-0.mp4")) == 9
    done = CliRunner().invoke(
        app, ["rewards", "score", str(out / "videos"), "--reward", "synchrony", "--out", str(out / "s"), "--json"]
    )
    found = json.loads(done.stdout)["summary"]["synchrony"]
    assert (found["scored"], found["masked"]) == (4, 0)
    assert found["mean"] == pytest.approx(whole[1]["means"]["base"]["synchrony"]["mean"], abs=0.05)


def test_a_model_without_sound_is_masked_and_never_a_number(tmp_path):
    results = evaluated(
        "base=lab-paper", "--steps", "2", "--limit", "1", "--seeds", "1", "--scorer", "synchrony", "--out", tmp_path
    )
    mean = results["means"]["base"]["synchrony"]
    assert (mean["mean"], mean["videos"], mean["masked"]) == (None, 0, 1)
    assert results["masked"]["base"]["synchrony"] == {"it has no sound": 1}
    assert results["means"]["base"]["VQ"]["masked"] == 0


@pytest.mark.parametrize(
    ("rate", "shape", "fps"), [(400, (2, 151), 24.0), (48_000, (1, 99_999), 23.976), (24_000, (2, 1), None)]
)
def test_kept_sound_is_the_sound(tmp_path, rate, shape, fps):
    video = torch.randint(0, 256, (3, 17, 31, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    sound = SoundTrack(np.random.default_rng(0).normal(0, 0.4, shape).astype(np.float32), rate)
    folder = Folder(tmp_path)
    path = folder.frames("a", "0", 0)
    path.parent.mkdir(parents=True)
    path.write_bytes(lossless(video, sound, fps))
    back = load_sound(folder, "a", "0", 0, hash_of_sound(sound))
    assert back.rate == rate
    assert np.array_equal(back.wave, sound.wave)
    assert np.array_equal(read_frames(path), video.numpy())
    assert lossless(video, sound, fps) == path.read_bytes()
    with pytest.raises(RuntimeError, match="does not give back the sound"):
        load_sound(folder, "a", "0", 0, hash_of_sound(SoundTrack(sound.wave[:, ::-1] + 1, rate)))
    path.write_bytes(lossless(video))
    with pytest.raises(RuntimeError, match="does not give back the sound"):
        load_sound(folder, "a", "0", 0, hash_of_sound(sound))
