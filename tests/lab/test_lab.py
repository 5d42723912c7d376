"""The laboratory: statistics against known answers, and the whole command at a small size."""

import json
import math

import pytest
import torch
from scipy import stats
from typer.testing import CliRunner

from sage_grpo.cli import app
from sage_grpo.statistics import effect, paired, verdict


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
    ("values", "expected", "answer"),
    [
        ([1.0, 1.1, 0.9], "positive", "reproduced"),
        ([1.0, 1.1, 0.9], "negative", "not reproduced"),
        ([1.0, -1.1, 0.4], "positive", "undecided"),
        ([-1.0, -1.1, -0.9], "negative", "reproduced"),
    ],
)
def test_verdicts(values, expected, answer):
    assert verdict(effect(values), expected=expected) == answer


def test_one_value_has_no_interval():
    with pytest.raises(ValueError, match="at least two"):
        effect([1.0])


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    out = tmp_path_factory.mktemp("lab")
    result = CliRunner().invoke(
        app, ["lab", "--out", str(out), "--iterations", "24", "--samples", "96", "--json"], catch_exceptions=False
    )
    assert result.exit_code == 0
    return json.loads(result.stdout), out


@pytest.mark.slow
def test_lab_improves_the_reward_even_at_a_small_size(quick):
    found, _ = quick
    assert {"reward_delta", "reward_se", "samples", "seconds"} <= set(found)
    assert found["samples"] == 96
    assert found["reward_delta"] > 3 * found["reward_se"] > 0


@pytest.mark.slow
def test_lab_writes_a_report_that_stands_alone(quick):
    _, out = quick
    page = (out / "report.html").read_text()
    assert page.count("data:video/mp4;base64,") == 16  # eight pairs
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "held out: distance to the manifold" in page
    assert (out / "before_after.png").stat().st_size > 10_000


@pytest.mark.slow
def test_lab_goes_on_instead_of_starting_over(quick):
    """The same command again finds the finished run and only evaluates it: the same figures."""
    found, out = quick
    result = CliRunner().invoke(app, ["lab", "--out", str(out), "--iterations", "24", "--samples", "96", "--json"])
    again = json.loads(result.stdout)
    assert again["reward_delta"] == found["reward_delta"]
