"""What is planned: which videos, which sides, in which order; mistakes are told in a sentence."""

import json
from collections import Counter

import av
import numpy as np
import pytest
from typer.testing import CliRunner

from sage_grpo.cli import app
from sage_grpo.config import ConfigError
from sage_grpo.evaluation.audit.degrade import degrade
from sage_grpo.evaluation.clips import open_video
from sage_grpo.evaluation.study.make import choose_pairs, from_eval, from_folders, stripped
from sage_grpo.evaluation.study.plan import assign, check_videos, read_plan
from sage_grpo.videos import read_mp4
from study.material import PROMPTS, SOURCES, clip, mp4, write_eval

METHOD, ALPHA, BETA = SOURCES


def shown_to(plan, number, before=()):
    assigned = Counter(showing.comparison for rater in before for showing in rater if not showing.repeat)
    return assign(plan, number, assigned, assigned)


def test_pairs():
    assert choose_pairs(["a", "b", "c"], "b", None) == [("b", "a"), ("b", "c")]
    assert choose_pairs(["a", "b", "c"], None, "a") == [("b", "a"), ("c", "a")]
    assert choose_pairs(["a", "b", "c"], None, None) == [("b", "a"), ("c", "a"), ("c", "b")]
    assert choose_pairs(["a", "b", "c"], "c", "a") == [("c", "a")]


@pytest.mark.slow
def test_a_plan_holds_every_comparison_and_its_videos(make, evaluated):
    folder, plan, _ = make(checks=3)
    assert [(c.prompt_id, c.first.source, c.second.source) for c in plan.comparisons] == [
        (key, METHOD, other) for key in PROMPTS for other in (ALPHA, BETA)
    ]
    check_videos(folder, plan)
    videos = [path.read_bytes() for path in (folder / "videos").iterdir()]
    assert len(videos) == len(plan.videos) == 9 + 3
    assert not [word for word in (*SOURCES, "x264", "Lavf") if any(word.encode() in data for data in videos)]
    for comparison in plan.comparisons:
        for side in (comparison.first, comparison.second):
            original = read_mp4(evaluated / "videos" / side.source / f"{comparison.prompt_id}-0.mp4")
            assert np.array_equal(read_mp4(folder / "videos" / side.video), original)
    assert [check.check for check in plan.checks] == ["noise", "flat", "noise"]
    for i, check in enumerate(plan.checks):
        good = open_video(folder / "videos" / check.first.video).frames
        bad = open_video(folder / "videos" / check.second.video).frames
        assert bad.shape == good.shape
        grey = [frames.float().mean(-1).numpy() for frames in (bad, good, degrade(check.check, good, plan.seed + i))]
        change, expected = grey[0] - grey[1], grey[2] - grey[1]
        assert np.abs(expected).mean() > 10
        assert np.corrcoef(change.ravel(), expected.ravel())[0, 1] > 0.8  # H.264 is in between


def test_files_lose_what_tells_their_source(tmp_path):
    path = tmp_path / "a.mp4"
    path.write_bytes(mp4(clip((9, 99, 199)), source="secretsource"))
    assert path.read_bytes().count(b"secretsource") >= 3  # the fault is planted
    clean = stripped(path)
    for word in (b"secretsource", b"x264", b"Lavf"):
        assert word not in clean
    with av.open(str(path)) as container:
        assert container.metadata["title"] == "secretsource"


def test_seeds_of_the_evaluation_are_the_same_on_both_sides(tmp_path, make, dimensions):
    folder = write_eval(tmp_path / "seeds", seeds=(0, 1, 2))
    _, items = from_eval(folder)
    assert all(len({path.stem for path in version.values()}) == 1 for item in items for version in item.versions)
    assert [len(item.versions) for item in items] == [3, 3, 3]


def test_sides_are_balanced_over_raters_and_within_each(make):
    _, plan, _ = make(method=None)
    before = []
    for number in range(20):
        before.append(shown_to(plan, number, before))
    real = {comparison.id: (comparison.first.source, comparison.second.source) for comparison in plan.comparisons}
    for rater in before:
        for pair in set(real.values()):
            swapped = [s.swapped for s in rater if real.get(s.comparison) == pair and not s.repeat]
            assert abs(2 * sum(swapped) - len(swapped)) <= 1
    for key in real:
        swapped = [s.swapped for rater in before for s in rater if s.comparison == key and not s.repeat]
        assert sum(swapped) == 10
        assert swapped[::2] != [swapped[0]] * 10  # and not simply in turn
    assert len({tuple(showing.comparison for showing in rater) for rater in before}) == 20


def test_order_has_checks_not_first_and_the_repeat_late_with_sides_exchanged(make):
    _, plan, _ = make(checks=3)
    checks, positions = {check.id for check in plan.checks}, Counter()
    for number in range(100):
        rater = shown_to(plan, number)
        assert len(rater) == len(plan.comparisons) + 3 + 1
        assert rater[0].comparison not in checks
        positions.update(i for i, showing in enumerate(rater) if showing.comparison in checks)
        ((at, repeat),) = [(i, showing) for i, showing in enumerate(rater) if showing.repeat]
        (first,) = [i for i, s in enumerate(rater) if s.comparison == repeat.comparison and not s.repeat]
        assert first < at
        assert rater[first].swapped is not repeat.swapped
    assert len(positions) == 9  # anywhere but first


def test_a_few_comparisons_each_fill_up_alike(make):
    _, plan, _ = make(method=None, per_rater=3)
    before = []
    for number in range(9):
        before.append(shown_to(plan, number, before))
        pairs = {
            plan.by_id[showing.comparison].second.source + plan.by_id[showing.comparison].first.source
            for showing in before[0]
            if showing.comparison.startswith("c")
        }
        assert len(pairs) == 3
    counts = Counter(s.comparison for rater in before for s in rater if not s.repeat and s.comparison[0] == "c")
    assert set(counts.values()) == {3}
    assert len(counts) == 9


def test_plain_folders(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.mp4").write_bytes(mp4(clip(SOURCES[METHOD])))
    (tmp_path / "b" / "x.txt").write_text("a text beside one of them")
    sources, items = from_folders({"a": tmp_path / "a", "b": tmp_path / "b"})
    assert (sources, [(item.id, item.text) for item in items]) == (["a", "b"], [("x", "a text beside one of them")])
    (tmp_path / "a" / "lonely.mp4").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"lonely.mp4 has no partner"):
        from_folders({"a": tmp_path / "a", "b": tmp_path / "b"})


def test_videos_that_browsers_may_not_play_are_refused(tmp_path):
    path = tmp_path / "a.mp4"
    path.write_bytes(mp4(clip((1, 2, 3)), pix_fmt="yuv444p"))
    with pytest.raises(ConfigError, match="h264 yuv444p, which not every browser plays; convert it: ffmpeg"):
        stripped(path)
    path.write_bytes(b"no video at all")
    with pytest.raises(ConfigError, match="not a video"):
        stripped(path)


def test_videos_of_other_shape_are_noted(tmp_path, make, monkeypatch):
    for name, side in (("a", 128), ("b", 64)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.mp4").write_bytes(mp4(clip((9, 9, 99))[:, :side, :side]))
    done = run("make", "--videos", f"a={tmp_path}/a", "--videos", f"b={tmp_path}/b", "--out", tmp_path / "s", "--json")
    assert json.loads(done.stdout)["notes"] == ["videos of different size, length or rate tell sources apart: x"]


def run(*words):
    return CliRunner().invoke(app, ["study", *map(str, words)])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["make"], "either a folder of `sage-grpo eval` or --videos"),
        (["make", "."], "has no manifest.json"),
        (["make", "--videos", "a"], "write it as name=folder"),
        (["make", "EVAL", "--method", "nobody"], "there is no source 'nobody'; there are methodzeta"),
        (["make", "EVAL", "--dimension", "taste"], "there is no dimension 'taste'"),
        (["make", "EVAL", "--dimension", "taste=Taste"], "write it as 'key=Name: question'"),
        (["make", "EVAL", "--dimension", "Ta ste=Taste: Which?"], "a key is short"),
        (["run", "."], "is no study"),
        (["results", "."], "is no study"),
        (["size", "--rate", "0.9", "--ties", "0.9"], "can be ties"),
    ],
)
def test_mistakes(evaluated, words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(*[evaluated if word == "EVAL" else word for word in words])
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())


def test_a_study_is_not_overwritten_and_its_videos_are_checked(make):
    folder, plan, _ = make()
    with pytest.raises(ConfigError, match="has a study in it already"):
        make()
    name = next(iter(plan.videos))
    (folder / "videos" / name).write_bytes(b"other")
    with pytest.raises(ConfigError, match="not the video that was planned"):
        check_videos(folder, plan)
    (folder / "plan.json").write_text((folder / "plan.json").read_text().replace(name, "../../secret.mp4"))
    with pytest.raises(ConfigError, match="not a plan of this version"):
        read_plan(folder)


def test_own_dimensions(evaluated, tmp_path):
    done = run(
        "make",
        evaluated,
        "--dimension",
        "style=Style: Which has more?",
        "--dimension",
        "motion",
        "--out",
        tmp_path / "s",
        "--json",
    )
    assert done.exit_code == 0
    plan, _ = read_plan(tmp_path / "s")
    assert [(d.key, d.name) for d in plan.dimensions] == [("style", "Style"), ("motion", "Motion quality")]
    assert "'Style'" in plan.rule
