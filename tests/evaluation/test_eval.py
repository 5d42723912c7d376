"""`sage-grpo eval` as a user meets it: results, resume, masks, several processes, mistakes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
import yaml
from typer.testing import CliRunner

from distributed.launcher import environment, torchrun
from evaluation.moody import Moody
from sage_grpo.cli import app
from sage_grpo.core.protocols import Prompt
from sage_grpo.evaluation import videos
from sage_grpo.evaluation.sources import find_sources
from sage_grpo.evaluation.videos import Folder, hash_of, load_frames, lossless, read_record

pytestmark = pytest.mark.slow

SMALL = ["--limit", "6", "--seeds", "2"]


def invoke(*arguments):
    return CliRunner().invoke(app, ["eval", *map(str, arguments)], env={"COLUMNS": "80", "NO_COLOR": "1"})


def evaluated(*arguments):
    done = invoke(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def plain_output(result):
    return " ".join(result.output.split())


@pytest.fixture(scope="module")
def whole(run, tmp_path_factory):
    """An evaluation that nobody disturbed."""
    out = tmp_path_factory.mktemp("whole") / "eval"
    return out, evaluated(f"new={run}", *SMALL, "--out", out)


def test_the_folder_holds_what_was_promised(whole):
    out, results = whole
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["version"], manifest["sources"], manifest["seeds"]) == (1, ["base", "new"], [0, 1])
    assert manifest["prompts"][0] == {
        "id": "00",
        "text": "a red circle moving left",
        "tags": {"shape": "circle", "colour": "red", "direction": "left", "training": "kept out"},
    }
    names = {f"{prompt['id']}-{seed}.mp4" for prompt in manifest["prompts"] for seed in (0, 1)}
    for source in ("base", "new"):
        assert {path.name for path in (out / "videos" / source).iterdir()} == names
        assert len(list((out / "scores" / source).glob("*.jsonl"))) == 6
    assert results == json.loads((out / "results.json").read_text()) | {"out": str(out)}
    assert "Difference to base" in (out / "table.md").read_text()
    assert (out / "report.html").read_text().count("<video") == 24
    assert [(s["name"], s["trained"]) for s in results["scores"]] == [
        ("Overall", True),
        ("VQ", True),
        ("MQ", True),
        ("TA", True),
        ("distance", False),
        ("accuracy", False),
        ("diversity", False),
    ]
    assert all(mean["masked"] == 0 for means in results["means"].values() for mean in means.values())
    assert results["sources"]["new"]["checkpoint"] == "step-00000002"
    assert results["sources"]["base"]["checkpoint"] == "untrained"


def test_figures_are_those_of_the_scores(whole):
    """The mean of the table, worked out anew from the lines of the scorer."""
    out, results = whole
    values = []
    for path in sorted((out / "scores" / "new").glob("*.jsonl")):
        line = next(line for line in map(json.loads, path.read_text().splitlines()) if line["type"] == "shapes-first")
        parts = [video["scores"] for video in line["videos"].values()]
        values.append(sum(0.5 * p["VQ"] + 0.5 * p["MQ"] + p["TA"] for p in parts) / len(parts))
    assert results["means"]["new"]["Overall"]["mean"] == pytest.approx(sum(values) / 6, abs=1e-12)


def test_sources_are_pairs_and_differ(whole):
    """Equal seeds give equal noise: the untrained model named twice makes the same videos, the trained one others."""
    out, _ = whole
    again = out.parent / "again"
    results = evaluated("base=lab-paper", "twin=lab-paper", "--steps", "4", *SMALL, "--out", again)
    folder = Folder(out)
    for seed in (0, 1):
        twin = read_record(Folder(again), "twin", "03", seed).frames
        assert read_record(folder, "base", "03", seed).frames == twin
        assert read_record(folder, "new", "03", seed).frames != twin
    assert read_record(folder, "base", "03", 0).frames != read_record(folder, "base", "03", 1).frames
    assert all(pair["mean"] == 0 and pair["wins"]["mean"] == 0.5 for pair in results["comparisons"])
    assert not any(pair["stands"] for pair in results["comparisons"])


def test_all_sources_start_from_the_same_noise(run, tmp_path, monkeypatch):
    seeds, inner = [], videos.generate
    monkeypatch.setattr(videos, "generate", lambda *given: (seeds.append(given[-1]), inner(*given))[1])
    evaluated(f"a={run}", f"b={run}/checkpoints/step-00000001", "--limit", "2", "--seeds", "2", "--out", tmp_path / "e")
    assert seeds[:4] == seeds[4:8] == seeds[8:]
    assert len({seed for (seed,) in seeds}) == 4


def test_weights_of_the_policy_come_first(run, tmp_path):
    """As in the trainer: `policy.reward_weights` is before the weights of the rewards."""
    recipe = yaml.safe_load((run / "config.yaml").read_text())
    recipe["policy"]["reward_weights"] = [1.0, 0.0, 2.0]
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(recipe))
    results = evaluated(f"base={tmp_path}/other.yaml", "--limit", "2", "--seeds", "1", "--out", tmp_path / "e")
    means = {key: mean["mean"] for key, mean in results["means"]["base"].items()}
    assert means["Overall"] == pytest.approx(means["VQ"] + 2 * means["TA"])


def test_chosen_weights(run, whole, tmp_path):
    """The plain sum of Table 2, of the same scores; a mistake is told before a video is made."""
    out, before = whole
    again = shutil.copytree(out, tmp_path / "e")
    results = evaluated(f"new={run}", *SMALL, "--out", again, "--weights", "VQ=1,MQ=1,TA=1")
    for source in ("base", "new"):
        means, old = ({k: m["mean"] for k, m in of["means"][source].items()} for of in (results, before))
        assert means["Overall"] == pytest.approx(means["VQ"] + means["MQ"] + means["TA"])
        assert old["Overall"] == pytest.approx(0.5 * old["VQ"] + 0.5 * old["MQ"] + old["TA"])
        assert {k: v for k, v in means.items() if k != "Overall"} == {k: v for k, v in old.items() if k != "Overall"}
    held_out = evaluated(f"new={run}", *SMALL, "--out", again, "--weights", "TA=1,distance=-2")
    means = {key: mean["mean"] for key, mean in held_out["means"]["new"].items()}
    assert means["Overall"] == pytest.approx(means["TA"] - 2 * means["distance"])
    assert "Overall is 1·TA − 2·distance" in (again / "table.md").read_text()
    for given, words in (
        ("VQ", "not a list of name=number"),
        ("VQ=1", "two scores or more"),
        ("VQ=1,TB=1", "no score 'TB'"),
    ):
        result = invoke(f"new={run}", *SMALL, "--out", tmp_path / "none", "--weights", given)
        assert result.exit_code == 2
        assert words in plain_output(result)
    assert not (tmp_path / "none").exists()


def test_what_makes_a_video_is_in_its_hash(run):
    """Another number of steps or order, other weights of the same run, and the last ones in place of the averaged."""

    def identity(path=run, **more):
        return find_sources([str(path)], **{"base": False, "average": True} | more)[0].identity

    step = run / "checkpoints" / "step-00000001"
    sampled = [identity(overrides=[f"sampling.{key}"]) for key in ("steps=9", "order=2")]
    assert len({identity(), *sampled, identity(average=False), identity(step), identity("lab-paper")}) == 6
    assert identity() == identity(run / "checkpoints" / "step-00000002")


def test_killed_and_called_again_it_goes_on(run, whole, tmp_path):
    """SIGKILL in the middle: the same results, and what was finished is not made or scored again."""
    out = tmp_path / "eval"
    command = [sys.executable, "-m", "sage_grpo", "eval", f"new={run}", *SMALL, "--out", str(out)]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(list(out.glob("made/*/*.json"))) < 8 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = {path: path.stat().st_mtime_ns for path in out.glob("made/*/*.json")}
    assert 8 <= len(before) < 24
    evaluated(f"new={run}", *SMALL, "--out", out)
    assert (out / "results.json").read_bytes() == (whole[0] / "results.json").read_bytes()
    assert (out / "table.md").read_bytes() == (whole[0] / "table.md").read_bytes()
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_finished_one_makes_and_asks_nothing(run, whole, monkeypatch):
    out, results = whole
    monkeypatch.setattr(videos, "open_source", None)  # no model is loaded
    monkeypatch.setattr("sage_grpo.evaluation.scores.ask", None)
    assert evaluated(f"new={run}", *SMALL, "--out", out) == results


@pytest.mark.parametrize("what", ["videos", "frames", "made"])
def test_a_damaged_video_is_made_again_and_no_other(run, whole, tmp_path, what):
    out = tmp_path / "eval"
    shutil.copytree(whole[0], out)
    victim = sorted((out / what / "new").iterdir())[3]
    victim.write_bytes(victim.read_bytes()[:-9])
    before = {path: path.stat().st_mtime_ns for path in out.glob("made/*/*.json")}
    evaluated(f"new={run}", *SMALL, "--out", out)
    changed = [path.stem for path, moment in before.items() if path.stat().st_mtime_ns != moment]
    assert changed == [victim.stem]
    assert victim.read_bytes() == (whole[0] / victim.relative_to(out)).read_bytes()


def test_another_checkpoint_or_more_seeds_use_what_still_holds(run, whole, tmp_path):
    out = tmp_path / "eval"
    shutil.copytree(whole[0], out)
    before = {path: path.stat().st_mtime_ns for path in out.glob("made/*/*.json")}
    results = evaluated(f"new={run}/checkpoints/step-00000001", "--limit", 6, "--seeds", 3, "--out", out)
    remade = {path.parent.name for path, moment in before.items() if path.stat().st_mtime_ns != moment}
    assert remade == {"new"}
    assert results["means"]["base"]["diversity"]["videos"] == 18  # compared with the third, too
    assert results["sources"]["new"]["checkpoint"] == "step-00000001"
    for line in map(json.loads, (out / "scores" / "new" / "03.jsonl").read_text().splitlines()):
        for seed, video in line["videos"].items():  # scored are the new pixels
            assert video["frames"] == read_record(Folder(out), "new", "03", int(seed)).frames


def test_two_processes_give_what_one_gives(run, whole, tmp_path):
    out = tmp_path / "eval"
    command = torchrun(2, "sage_grpo", "eval", f"new={run}", *SMALL, "--out", out)
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (out / "results.json").read_bytes() == (whole[0] / "results.json").read_bytes()


def test_failures_are_masked_counted_and_never_numbers(run, whole, tmp_path, monkeypatch):
    out = tmp_path / "eval"
    shutil.copytree(whole[0], out)
    scorers = tmp_path / "scorers.yaml"
    scorers.write_text("- type: evaluation.moody:Moody\n")
    call = [f"new={run}", *SMALL, "--out", out, "--scorers", scorers]
    results = evaluated(*call)
    mood, steady = (results["means"]["new"][key] for key in ("mood", "steady"))
    assert (mood["videos"], mood["masked"], mood["prompts"]) == (8, 4, 4)
    assert (steady["videos"], steady["masked"], steady["prompts"]) == (10, 2, 5)
    reasons = results["masked"]["new"]["mood"]
    assert reasons == {"OSError: the server is away": 2, "the scorer gives no score for it": 2}
    assert "mood of 8 videos" in (out / "table.md").read_text()
    monkeypatch.setattr(Moody, "calls", 0)
    assert (evaluated(*call), Moody.calls) == (results, 0)
    monkeypatch.setattr(Moody, "mended", True)
    assert evaluated(*call, "--retry")["means"]["new"]["mood"]["masked"] == 0
    assert Moody.calls == 8  # and what it had said stays


@pytest.mark.parametrize("shape", [(8, 16, 16, 3), (3, 17, 31, 3), (1, 64, 48, 3), (2, 1, 1, 3)])
def test_kept_frames_are_the_frames(tmp_path, shape):
    video = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    folder = Folder(tmp_path)
    path = folder.frames("a", "0", 0)
    path.parent.mkdir(parents=True)
    path.write_bytes(lossless(video))
    assert torch.equal(load_frames(folder, "a", "0", 0, hash_of(video)), video)
    with pytest.raises(RuntimeError, match="does not give back the frames"):
        load_frames(folder, "a", "0", 0, hash_of(video + 1))


def test_noise_is_of_prompt_and_seed_alone():
    cat, dog = Prompt("a cat", {"tags": 1}), Prompt("a dog")
    seeds = {videos.noise_seed(p, s) for p in (cat, dog) for s in range(3)}
    assert len(seeds) == 6
    assert videos.noise_seed(Prompt("a cat"), 2) == videos.noise_seed(cat, 2)


def test_the_screen_fits_and_names_everything(run, whole):
    out, _ = whole
    done = invoke(f"new={run}", *SMALL, "--out", out)
    assert done.exit_code == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    for word in ("Overall ↑", "distance ↓", "held out", "difference to base", "wins, %", "report.html"):
        assert word in plain_output(done)


def test_mistakes(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for arguments, message in (
        (["runs/nothing"], "there is no recipe runs/nothing"),
        (["empty"], "empty is not a run: there is no empty/config.yaml"),
        ([f"a={run}", f"a={run}/checkpoints/step-00000001"], "two sources are named 'a'"),
        ([f"{run}/checkpoints/step-00000009"], "checkpoints of this run: step-00000001, step-00000002"),
        (["a="], "names no path"),
        ([f"{run}", "--scorer", "motions"], "did you mean 'motion'"),
        ([f"{run}", "--scorers", "no.yaml"], "there is no file no.yaml"),
        ([f"{run}", "--prompts", "no.jsonl"], "no.jsonl: no such file"),
        ([f"{run}", "other=text", "--limit", "1", "--seeds", "1"], "are not compared"),
        (["base=wan-1.3b-24gb-lora", f"{run}"], "videos of different size are not compared"),
    ):
        done = invoke(*arguments)
        assert done.exit_code == 2, (arguments, done.output)
        assert message in plain_output(done), (message, done.output)
        assert "Traceback" not in done.output


def test_names_of_their_own(run, tmp_path):
    results = evaluated(
        run, f"{run}/checkpoints/step-00000001", "--limit", "1", "--seeds", "1", "--no-base", "--out", tmp_path / "e"
    )
    assert list(results["sources"]) == ["trained", "trained-step-00000001"]
    assert results["reference"] == "trained"
    assert results["masked"]["trained"]["diversity"] == {"the scorer gives no score for it": 1}
    assert results["comparisons"][0]["low"] is None


def test_help_has_an_example_and_needs_no_torch():
    assert "sage-grpo eval paper=runs/paper" in plain_output(invoke("--help"))
