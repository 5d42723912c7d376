"""A short round of the soak in CI, `make soak HOURS=2` for many; and that its checks see what they are for."""

import json
import signal
import subprocess
from argparse import Namespace
from pathlib import Path

import pytest

pytest.importorskip("urllib3")

import torch

from distributed import soak, soak_checks
from distributed.soak_faults import PER_REQUEST, SHARES, expected, kinds
from sage_grpo.core.protocols import Prompt
from serve.faults import began, kill_all, living


@pytest.mark.real_start
@pytest.mark.slow
def test_a_round_of_kills_and_faults(tmp_path):
    counts = tmp_path / "counts.json"
    options = Namespace(
        hours=0.0,
        kills=2,
        faults=5,
        seed=4,
        iterations=5,
        fleet="own",
        json=str(counts),
        broken=None,
        out=tmp_path / "soak",
    )
    assert soak.soak(options) == 0, counts.read_text()
    found = json.loads(counts.read_text())
    assert found["finished"]
    assert found["kills"] >= 2
    assert found["restarts"] >= 2
    assert found["reward faults"] >= 5
    assert found["masked samples"] > 0
    assert found["iterations"] == 5 * found["rounds"] > 0
    assert not list((tmp_path / "soak").glob("round-*"))  # nothing was violated


def start(at, newest, **facts):
    line = {"time": 10.0, "rank": 0, "pid": 1, "start": [1, 0]}
    found = {"unwhole": [], "loadable_halves": [], "rows": True} | facts
    return [line | {"what": "start"}, line | {"what": "resumed", "at": at, "newest": newest} | found]


@pytest.mark.parametrize(
    ("notes", "timeline", "seen"),
    [
        (start(4, 4), [(5.0, 4), (11.0, 5)], set()),
        (start(3, 4), [(5.0, 4)], {"resume"}),
        (start(3, 3), [(5.0, 4)], {"lost"}),
        (start(4, 4, unwhole=["step-00000005"]), [], {"half"}),
        (start(4, 4, loadable_halves=[".step-00000005.part"]), [], {"half"}),
        (start(4, 4, rows=False), [], {"metrics"}),
    ],
)
def test_a_start_from_the_wrong_place_is_seen(notes, timeline, seen):
    assert {name for name, _ in soak_checks.check_starts(notes, timeline)} == seen


def rollout(**facts):
    usual = {"iteration": 3, "rank": 0, "wrong_masks": 0, "wrong_scores": 0, "videos": "a"}
    return usual | {"what": "rollout"} | facts


@pytest.mark.parametrize(
    ("notes", "seen"),
    [
        ([rollout(), rollout()], set()),
        ([rollout(wrong_masks=1)], {"masks"}),
        ([rollout(wrong_scores=1)], {"masks"}),
        ([rollout(), rollout(videos="b")], {"weights"}),
    ],
)
def test_wrong_masks_are_seen(notes, seen):
    assert {name for name, _ in soak_checks.check_masks(notes)} == seen


def test_memory_that_grows_is_seen():
    def notes(more):
        return [{"what": "rollout", "pid": 7, "mb": 500.0 + more * i} for i in range(60)]

    assert not soak_checks.check_memory(notes(0.2))
    assert soak_checks.check_memory(notes(3.0))


def test_a_bit_is_a_difference():
    state = {"a": [torch.zeros(3), 1.5], "b": {"c": torch.tensor([float("nan")])}}
    other = {"a": [torch.tensor([0.0, -0.0, 0.0]), 1.5], "b": {"c": torch.tensor([float("nan")])}}
    assert soak_checks.differences(state, state) == []
    assert soak_checks.differences(state, other) == ["/a/0"]


def test_faults_follow_from_the_sample_alone():
    """Every kind is met, with about its share, in any order of the samples."""
    videos = torch.randint(0, 256, (4000, 1, 2, 2, 3), dtype=torch.uint8)
    prompts = [Prompt("a cat")] * len(videos)
    found = [kind for kind, _ in kinds(videos, prompts, 0)]
    assert {kind: found.count(kind) / len(found) for kind in SHARES} == pytest.approx(SHARES, abs=0.01)
    assert [kind for kind, _ in kinds(videos.flip(0), prompts, 0)] == found[::-1]
    masked = ~expected(videos, prompts, 0).valid.all(1)
    request = masked.view(-1, PER_REQUEST).all(1)
    assert masked.sum() >= sum(kind in ("nan", "inf", "minus inf") for kind in found)
    assert request.sum() >= sum(kind in ("raise", "too few", "too many") for kind in found) / PER_REQUEST


def test_what_a_killed_writer_leaves_is_seen(tmp_path):
    (tmp_path / "checkpoints" / ".step-00000003.part").mkdir(parents=True)
    (tmp_path / "metrics.jsonl").touch()
    assert soak_checks.leftovers(tmp_path) == [str(Path("checkpoints") / ".step-00000003.part")]


def test_a_number_that_was_given_again_is_no_scorer(tmp_path):
    """Numbers of processes go round within hours of kills: a soak once killed a worker for a scorer that was dead."""
    with subprocess.Popen(["sleep", "60"]) as other, subprocess.Popen(["sleep", "60"]) as scorer:
        (tmp_path / f"pid-{other.pid}").write_text("1")
        (tmp_path / f"pid-{scorer.pid}").write_text(began(scorer.pid))
        (tmp_path / "pid-999999").write_text("1")
        assert living(tmp_path) == [scorer.pid]
        assert kill_all(tmp_path) == 1
        assert scorer.wait(timeout=10) == -signal.SIGKILL
        assert other.poll() is None
        assert kill_all(tmp_path) == 0
        other.kill()
