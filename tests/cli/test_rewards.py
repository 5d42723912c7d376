"""`sage-grpo rewards list`, `score` and `audit` as a user meets them."""

import json

import pytest
from PIL import Image
from typer.testing import CliRunner

from rewards.clips import pan
from sage_grpo import registry
from sage_grpo.cli import app
from sage_grpo.videos import write_mp4


def invoke(*arguments):
    return CliRunner().invoke(app, ["rewards", *map(str, arguments)], env={"COLUMNS": "80", "NO_COLOR": "1"})


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def videos(here):
    for i in range(2):
        write_mp4(here / "videos" / f"{i}.mp4", pan(2 + i)[:9, :48, :64], scale=1)
    (here / "videos" / "torn.mp4").write_bytes((here / "videos" / "0.mp4").read_bytes()[:900])
    return here / "videos"


def test_list_fits_eighty_columns_and_names_every_scorer():
    pytest.importorskip("accelerate")  # of VideoAlign, whose options are told
    result = invoke("list")
    assert result.exit_code == 0
    assert max(len(line) for line in result.stdout.splitlines()) <= 80
    for name in registry.rewards():
        assert f"  {name} " in result.stdout
    assert "path (required), fps=24" in result.stdout
    assert "A (VQ 1, MQ 1, TA 1)" in result.stdout


def test_list_as_json_has_every_scorer():
    found = json.loads(invoke("list", "--json").stdout)
    assert [one["name"] for one in found] == list(registry.rewards())
    keys = {
        "name",
        "summary",
        "scores",
        "groupwise",
        "required",
        "defaults",
        "presets",
        "installed",
        "install",
        "ready",
    }
    assert all(keys <= set(one) for one in found)


def test_list_says_how_to_install_what_is_missing(monkeypatch):
    there = registry.installed_version
    monkeypatch.setattr(registry, "installed_version", lambda n: None if n == "rapidocr-onnxruntime" else there(n))
    result = invoke("list")
    assert result.exit_code == 0
    assert "pip install 'sage-grpo[ocr]'" in result.stdout
    assert "Text rendering: does the video show" in result.stdout  # what it is, is still known


@pytest.mark.slow
def test_score_writes_everything_and_masks_what_is_broken(videos, here):
    result = invoke("score", videos, "--reward", "motion", "--reward", "sharpness")
    assert result.exit_code == 0, result.output
    assert max(len(line) for line in result.stdout.splitlines()) <= 80
    for word in ("3 videos", "sharpness", "acceleration", "masked torn.mp4: it is not a video"):
        assert word in result.stdout
    found = json.loads((here / "scores" / "scores.json").read_text())
    assert [row["file"] for row in found["rows"]] == ["0.mp4", "1.mp4", "torn.mp4"]
    assert found["summary"]["sharpness"]["masked"] == 1
    with Image.open(here / "scores" / "scores.png") as picture:
        assert picture.width > 600


def test_score_as_json_keeps_stdout_clean(videos):
    (videos.parent / "r.yaml").write_text("rewards: [{type: motion, options: {combined: true}}]\n")
    result = invoke("score", videos, "--rewards", "r.yaml", "--out", "o", "--json")
    found = json.loads(result.stdout)
    assert list(found["summary"]) == ["motion"]
    assert found["out"] == "o"
    assert found["summary"]["motion"]["scored"] == 2


def test_nothing_scored_is_a_failure_and_says_why(videos):
    for name in ("0.mp4", "1.mp4"):
        (videos / name).unlink()
    result = invoke("score", videos, "--reward", "sharpness")
    assert result.exit_code == 1
    assert "no video has any score" in result.stderr
    assert "damaged" in result.stdout


@pytest.mark.slow
def test_audit_writes_table_picture_and_json(videos, here):
    result = invoke("audit", videos, "--reward", "sharpness", "--out", "a")
    assert result.exit_code == 0, result.output
    assert max(len(line) for line in result.stdout.splitlines()) <= 80
    assert "gamed by" in result.stdout
    assert "left out" in result.stdout  # the torn one
    assert {path.name for path in (here / "a").iterdir()} == {"audit.json", "audit.md", "audit.png", "copies.png"}
    found = json.loads((here / "a" / "audit.json").read_text())
    assert found["cells"]["sharpness"]["blur"]["verdict"] == "caught"
    assert len(found["clips"]) == 2


@pytest.mark.slow
def test_audit_makes_its_own_clips(monkeypatch):
    from sage_grpo.evaluation.audit import natural

    scenes = dict(list(natural.scenes().items())[:1])
    monkeypatch.setattr(natural, "scenes", lambda: scenes)
    found = json.loads(invoke("audit", "--reward", "sharpness", "--json").stdout)
    assert found["clips"] == list(scenes)
    assert found["scores"]["sharpness"]["blind_to"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("score", "nowhere"), "there is no file or folder nowhere"),
        (("score", "bare"), "bare has no videos in it; looked for .mp4"),
        (("score", "videos", "--reward", "motoin"), "did you mean 'motion'?"),
        (("score", "videos", "--reward", "http"), "missing a required argument: 'url'"),
        (("score", "videos", "--rewards", "wrong.yaml"), "is not valid YAML"),
        (("score", "videos", "--rewards", "none.yaml"), "there is no recipe none.yaml"),
        (("score", "videos", "--rewards", "option.yaml"), "motion has no option 'lwo'; did you mean 'low'?"),
        (("score", "videos", "--prompts", "p.csv"), "no row is for one of the 3 videos, such as 0.mp4"),
        (("score", "videos", "--prompts", "none.csv"), "no such file"),
        (("audit", "nowhere.mp4"), "there is no file or folder nowhere.mp4"),
        (("audit", "videos/torn.mp4", "--reward", "sharpness"), "none of the 1 videos can be read"),
        (("audit", "--prompts", "p.csv"), "--prompts is for videos of your own"),
    ],
)
def test_mistakes_get_one_sentence_and_no_trace(videos, here, arguments, message):
    if "http" in arguments:
        pytest.importorskip("urllib3")
    (here / "bare").mkdir()
    (here / "wrong.yaml").write_text("rewards: [{")
    (here / "option.yaml").write_text("rewards: [{type: motion, options: {lwo: 1}}]")
    (here / "p.csv").write_text("file,prompt\nother.mp4,a cat\n")
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.output


@pytest.mark.parametrize("command", ["list", "score", "audit"])
def test_help_has_an_example(command):
    assert f"sage-grpo rewards {command}" in invoke(command, "--help").stdout
