"""The laboratory: statistics against known answers, and the whole command at a small size."""

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats
from typer.testing import CliRunner

from sage_grpo.cli import app
from sage_grpo.lab.shapes.evaluate import Evaluation
from sage_grpo.lab.shapes.run import chosen
from sage_grpo.statistics import effect, equivalent, paired, verdict


def test_intervals_are_scipys():
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 9, generator=generator, dtype=torch.float64).tolist()
    found = paired(a, b)
    truth = stats.ttest_rel(a, b).confidence_interval()
    assert (found.low, found.high) == pytest.approx((truth.low, truth.high))
    assert found.se == pytest.approx(stats.sem([x - y for x, y in zip(a, b, strict=True)]))


def test_intervals_cover_as_often_as_they_say():
    generator = torch.Generator().manual_seed(1)
    draws = torch.randn(2000, 5, generator=generator, dtype=torch.float64).tolist()
    inside = sum(e.low < 0 < e.high for e in map(effect, draws)) / len(draws)
    assert inside == pytest.approx(0.95, abs=3 * math.sqrt(0.95 * 0.05 / 2000))


@pytest.mark.parametrize(
    ("values", "expected", "margin", "answer"),
    [
        ([1.0, 1.1, 0.9], "positive", None, "reproduced"),
        ([1.0, 1.1, 0.9], "negative", None, "not reproduced"),
        ([1.0, -1.1, 0.4], "positive", None, "undecided"),
        ([-1.0, -1.1, -0.9], "negative", None, "reproduced"),
        ([0.1, -0.1, 0.05, -0.06], "positive", 0.5, "equivalent"),
        ([0.1, -0.1, 0.05, -0.06], "positive", 0.05, "undecided"),
        ([0.1, 0.11, 0.09], "positive", 0.5, "equivalent"),  # surely positive, and surely smaller than the margin
        ([-0.1, -0.11, -0.09], "positive", 0.05, "not reproduced"),
    ],
)
def test_verdicts(values, expected, margin, answer):
    assert verdict(effect(values), expected=expected, margin=margin) == answer


@pytest.mark.slow
def test_equivalence_is_claimed_falsely_in_one_of_twenty():
    """Where the true mean is the margin itself; scipy's two one-sided tests agree with ours one by one."""
    draws = np.random.default_rng(2).normal(0.5, 0.3, (4000, 8))
    ours = [equivalent(effect(row.tolist()), 0.5) for row in draws]
    for row, said in zip(draws[:300], ours, strict=False):
        below = stats.ttest_1samp(row, 0.5, alternative="less").pvalue
        above = stats.ttest_1samp(row, -0.5, alternative="greater").pvalue
        assert said == (max(below, above) < 0.05)
    assert np.mean(ours) == pytest.approx(0.05, abs=3 * math.sqrt(0.05 * 0.95 / 4000))


def test_one_value_has_no_interval():
    with pytest.raises(ValueError, match="at least two"):
        effect([1.0])


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """A sixth of the recipe's length."""
    out = tmp_path_factory.mktemp("lab")
    words = ["lab", "--out", str(out), "--iterations", "16", "--samples", "96", "--seed", "11", "--json"]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0
    return json.loads(result.stdout), out, words


@pytest.mark.slow
def test_lab_learns_even_in_a_sixth_of_its_time(quick):
    found, _, _ = quick
    assert found["samples"] == 96
    assert found["reward_delta"] > 3 * found["reward_se"] > 0
    assert 0.55 < found["followed"]["before"] < 0.75
    assert found["followed"]["after"] > found["followed"]["before"] + 0.05
    assert found["flawed"]["after"] < found["flawed"]["before"]
    assert found["guidance"] == 2
    assert list(found["base"]) == ["1", "2", "4"]
    assert found["base"]["2"]["followed"] == found["followed"]["before"]
    assert found["base"]["1"]["followed"] < 0.6
    assert found["base"]["4"]["followed"] < 0.8
    assert found["gained"] - found["lost"] == round(96 * (found["followed"]["after"] - found["followed"]["before"]))
    assert found["distance_after"] < 1.1 * found["distance_before"]
    assert found["diversity_after"] > 0.9 * found["diversity_before"]
    low, high = found["followed"]["after_interval"]
    assert low < found["followed"]["after"] < high


@pytest.mark.slow
def test_lab_writes_a_report_that_stands_alone_and_opens_with_a_moving_picture(quick):
    _, out, _ = quick
    page = (out / "before_after.html").read_text()
    assert page.count("data:video/mp4;base64,") == 16  # eight pairs
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "held out: distance to the manifold" in page
    assert "The untrained base, with more or less guidance" in page
    assert page.index("data:image/webp;base64,") < page.index("data:video/mp4;base64,")
    assert (out / "before_after.png").stat().st_size > 10_000
    with Image.open(out / "before_after.webp") as picture:
        assert picture.n_frames == 8


@pytest.mark.slow
def test_lab_goes_on_instead_of_starting_over(quick):
    """The same command again finds the finished run and only evaluates it: the same figures."""
    found, _, words = quick
    again = json.loads(CliRunner().invoke(app, words).stdout)
    assert again["reward_delta"] == found["reward_delta"]
    assert again["followed"] == found["followed"]


def evaluation(correct):
    count = len(correct)
    return Evaluation(
        prompts=["a red circle moving left"] * count,
        videos=torch.zeros(count, 8, 32, 32, 3, dtype=torch.uint8),
        scores=torch.zeros(count, 3),
        distance=torch.zeros(count),
        correct=torch.tensor(correct),
        diversity=1.0,
        pixel_diversity=1.0,
    )


def test_the_moving_picture_shows_the_first_mistakes_of_each_kind_whatever_became_of_them():
    yes, shape, colour = [True] * 3, [False, True, True], [True, False, True]
    before = evaluation([yes, shape, colour, shape, colour, colour])
    after = evaluation([yes, yes, yes, shape, yes, colour])
    shown = chosen(before, after)
    assert [(item.met_before, item.met_after) for item in shown] == [
        (False, True),  # two wrong colours, 2 and 4; the third is left out
        (False, True),
        (False, True),  # two wrong shapes, 1 and 3
        (False, False),
    ]
    assert len(chosen(evaluation([yes, yes]), evaluation([yes, yes]))) == 1  # nothing was wrong: something is shown
