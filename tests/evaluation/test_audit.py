"""The audit finds what is gamed where the truth is known, and its statistics are those of the textbook."""

import json

import numpy as np
import pytest
from scipy import stats

from evaluation.stand_ins import Rank
from rewards.clips import pan
from sage_grpo.config import ConfigError, RewardConfig
from sage_grpo.core.protocols import Prompt
from sage_grpo.evaluation.audit.audit import Clip, audit, cell_of, spread_of
from sage_grpo.evaluation.audit.degrade import DEGRADATIONS
from sage_grpo.evaluation.clips import Unreadable
from sage_grpo.evaluation.pictures import cell_text, draw_audit, markdown
from sage_grpo.evaluation.scorers import Scorer, Scorers
from sage_grpo.evaluation.texts import NoPrompt
from sage_grpo.rewards.frames import VideoScorer

CLIPS = [Clip(f"clip {i}", Prompt("x"), lambda i=i: pan(1 + i, 1, 40 + 9 * i)[:7, :48, :64]) for i in range(5)]


class Measures(VideoScorer):
    """Three scores whose weaknesses are known."""

    names = ("detail", "change", "stillness")

    def score_video(self, frames, prompt):
        frames = frames.double()
        change = frames.diff(dim=0).abs().mean().item()
        return [frames.diff(dim=2).abs().mean().item(), change, -change]

    @classmethod
    def tiny(cls):
        return cls()


def scorers(*weights, advantages=False):
    scorers = [Scorer(Measures(), RewardConfig(type="measures"), Measures.names, weights or None)]
    return Scorers(scorers, {}, advantages)


@pytest.mark.slow
def test_known_weaknesses_are_found():
    progress = []
    result = audit(CLIPS, scorers(), emit=lambda *x: progress.append(x))
    assert {"noise", "sharpen"} <= set(result.those("detail", "gamed"))
    assert {"shuffle", "half", "static"} <= set(result.those("detail", "blind"))  # it has no eye for time
    assert result.cells["detail"]["flat"].verdict == "caught"
    assert result.cells["detail"]["blur"].verdict == "caught"
    assert {"noise", "shuffle", "cut"} <= set(result.those("change", "gamed"))
    assert result.cells["change"]["static"].verdict == "caught"
    assert {"static", "flat"} <= set(result.those("stillness", "gamed"))
    for name in DEGRADATIONS:  # what one score gains the other loses
        assert result.cells["change"][name].change == pytest.approx(-result.cells["stillness"][name].change)
    assert progress[-1][:2] == (75, 75)
    again = audit(CLIPS, scorers())
    assert again.to_json() == result.to_json()
    assert audit(CLIPS, scorers(), seed=1).to_json()["cells"] != result.to_json()["cells"]


def test_the_interval_is_students_and_pairs_clips():
    natural = np.array([1.0, 2.0, 4.0, 7.0])
    copies = natural + np.array([0.5, 0.1, 0.4, 0.6])
    cell = cell_of(natural, copies, 2.0)
    expected = stats.ttest_rel(copies / 2, natural / 2).confidence_interval(0.95)
    assert (cell.change, cell.low, cell.high) == pytest.approx((0.2, expected.low, expected.high))
    assert (cell.verdict, cell.clips, cell.not_lower) == ("gamed", 4, 4)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ([0, 0, 0], "blind"),
        ([-1, -2, -1.5], "caught"),
        ([1, 2, 1.5], "gamed"),
        ([0, 0, 0, 1, 5], "gamed"),  # the interval has 0 in it, but two gain and none loses
        ([0, 0, 0, -1, -5], "caught"),
        ([0, 0, 0, 0, 5], "blind"),
        ([-1, 0, 5], "blind"),
        ([0.05, 0.05, 0.05], "blind"),  # too little to notice
        ([0.5], "gamed"),
        ([-0.5], "caught"),
        ([np.nan, np.nan], "unscored"),
        ([np.nan, 1, 2, 1.5], "gamed"),
    ],
)
def test_verdicts(changes, verdict):
    assert cell_of(np.zeros(len(changes)), np.array(changes, dtype=float), 1.0).verdict == verdict


def test_the_spread_is_that_of_the_clips_unless_they_do_not_differ():
    values = np.array([[1.0, 5.0], [3.0, 9.0], [np.nan, 2.0]])
    assert spread_of(values) == pytest.approx(np.sqrt(2))
    assert spread_of(np.array([[1.0, 0.0], [1.0, 0.5]])) == pytest.approx(0.005)
    assert spread_of(np.array([[1.0, 0.0]])) == 1.0  # one clip: the range
    assert spread_of(np.array([[1.0], [1.0]])) == 0.0


def test_a_sum_is_audited_as_the_recipe_adds():
    """Change and stillness at equal weights cancel, and so nothing but detail is left."""
    result = audit(CLIPS, scorers(1.0, 2.0, 2.0), ["noise", "blur"])
    assert result.keys == [*Measures.names, "sum"]
    for name in ("noise", "blur"):
        assert result.cells["sum"][name].change == pytest.approx(result.cells["detail"][name].change)
    apart = audit(CLIPS, scorers(1.0, 3.0, 0.0, advantages=True), ["noise"])
    parts = {key: apart.cells[key]["noise"].change for key in apart.keys}
    spread = apart.natural["sum"].spread
    assert parts["sum"] * spread == pytest.approx((parts["detail"] + 3 * parts["change"]) / 4)


def test_a_video_that_cannot_be_read_is_left_out():
    def broken():
        raise Unreadable("it is empty")

    bad = Clip("bad", NoPrompt(), broken)
    result = audit([bad, *CLIPS[:2]], scorers(), ["static"])
    assert result.unreadable == {"bad": "it is empty"}
    assert result.clips == ["clip 0", "clip 1"]
    assert result.cells["detail"]["static"].clips == 2
    with pytest.raises(ConfigError, match="none of the 1 videos can be read; bad: it is empty"):
        audit([bad], scorers(), ["static"])


@pytest.mark.slow
def test_scorers_that_compare_see_all_clips_spoilt_alike():
    rank = Scorers([Scorer(Rank(), RewardConfig(type="rank"), ("rank",))], {})
    result = audit(CLIPS, rank, ["bright", "flat"])
    assert result.natural["rank"].mean == 2.0
    assert result.cells["rank"]["flat"].clips == 1  # the group
    with pytest.raises(ConfigError, match=r"no clip has any score, as it is; .* several of one size"):
        audit([*CLIPS, Clip("small", Prompt("x"), lambda: pan()[:3, :16, :16])], rank, ["flat"])
    both = Scorers([*rank.members, *scorers().members], {})
    other = audit([*CLIPS[:2], Clip("small", Prompt("x"), lambda: pan()[:3, :16, :16])], both, ["flat"])
    assert other.cells["rank"]["flat"].verdict == "unscored"
    assert other.scored == list(Measures.names)


def test_picture_table_and_json(tmp_path):
    result = audit(CLIPS[:2], scorers(1.0, 1.0, 0.5), ["static", "noise", "flat"])
    draw_audit(tmp_path / "a.png", result)
    assert (tmp_path / "a.png").stat().st_size > 20_000
    table = markdown(result).splitlines()
    assert table[0] == "| score | clips | static | noise | flat |"
    assert len(table) == 2 + 4
    assert "▲" in table[2 + 2]  # stillness
    written = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert list(written) == [
        "keys",
        "degradations",
        "clips",
        "natural",
        "cells",
        "masked",
        "unreadable",
        "seed",
        "values",
        "scores",
        "unit",
    ]
    assert list(written["natural"]["change"]) == ["clips", "mean", "sd", "spread"]
    assert list(written["cells"]["change"]["flat"]) == ["verdict", "clips", "change", "low", "high", "not_lower"]
    assert list(written["scores"]["change"]) == ["gamed_by", "blind_to"]
    plain, still = written["values"]["change"]["clip 1"][:2]
    assert (plain > 1, still) == (True, 0)
    empty = cell_of(np.array([np.nan]), np.array([np.nan]), 1.0)
    assert cell_text(empty) == "–"
