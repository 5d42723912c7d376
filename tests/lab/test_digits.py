"""Text rendering against real OCR: statistics with known answers, the base as stated, the command at a small size."""

import json
import sys

import pytest

pytest.importorskip("rapidocr_onnxruntime")

import torch
from PIL import Image
from scipy import stats
from typer.testing import CliRunner

from sage_grpo.cli import app
from sage_grpo.config import load_recipe
from sage_grpo.core.protocols import Prompt
from sage_grpo.lab.digits.run import lottery
from sage_grpo.statistics import mcnemar, share
from sage_grpo.training.build import build_rewards

SAMPLES = 48
STATED = 0.73  # docs/text-rendering.md, exact match of the base


def test_mcnemar_counts_changes_alone():
    before = [True] * 30 + [False] * 14 + [True] * 4
    after = [True] * 30 + [True] * 14 + [False] * 4
    found = mcnemar(before, after)
    assert (found.gained, found.lost) == (14, 4)
    assert found.p == pytest.approx(stats.binom.cdf(4, 18, 0.5) * 2)  # two-sided, by hand
    assert mcnemar([True, False], [True, False]).p == 1


def test_shares_have_wilsons_interval():
    p, low, high = share([True] * 8 + [False] * 2)
    z, n = stats.norm.ppf(0.975), 10
    middle, half = (
        (p + z**2 / (2 * n)) / (1 + z**2 / n),
        z * (p * (1 - p) / n + z**2 / (4 * n**2)) ** 0.5 / (1 + z**2 / n),
    )
    assert (low, high) == pytest.approx((middle - half, middle + half))


def run(out, *more):
    arguments = ["lab", "text", "--out", str(out), "--iterations", "2", "--samples", str(SAMPLES), *more]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    out = tmp_path_factory.mktemp("text")
    return json.loads(run(out, "--json")), out


@pytest.mark.slow
def test_the_base_reads_as_stated(small):
    found, _ = small
    low, high = stats.binom.interval(0.999, SAMPLES, STATED)
    assert low <= found["exact"]["before"] * SAMPLES <= high
    assert found["colour_before"] > 0.9


@pytest.mark.slow
def test_figures_and_report_agree(small):
    found, out = small
    assert found["iterations"] == 2
    assert found["exact"]["after"] - found["exact"]["before"] == pytest.approx(found["exact_delta"])
    assert found["gained"] - found["lost"] == round(found["exact_delta"] * SAMPLES)
    page = (out / "before_after.html").read_text()
    assert page.count("data:video/mp4;base64,") == 16  # eight pairs
    assert "held out: exactly, by the second reader" in page
    assert page.index("data:image/webp;base64,") < page.index("data:video/mp4;base64,")  # it opens with the picture
    with Image.open(out / "before_after.webp") as picture:
        assert picture.n_frames == 4
    assert (out / "before_after.png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_same_command_goes_on_and_says_the_same(small):
    found, out = small
    said = run(out)
    assert f"{found['exact']['before']:.0%} → {found['exact']['after']:.0%}" in said
    assert "second reader" in said


def test_without_ocr_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "rapidocr_onnxruntime", None)
    monkeypatch.delitem(sys.modules, "sage_grpo.rewards.ocr", raising=False)
    result = CliRunner().invoke(app, ["lab", "text"])
    assert result.exit_code != 0
    assert "pip install 'sage-grpo[ocr]'" in result.output
    assert "Traceback" not in result.output


def test_the_lottery_of_the_control_knows_nothing_but_is_the_same_again():
    videos = torch.randint(256, (200, 2, 4, 4, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    drawn = torch.tensor(lottery(videos, [Prompt("a")] * 200))
    assert drawn.tolist() == pytest.approx(lottery(videos, [Prompt("b")] * 200))
    assert drawn.unique().numel() == 200
    assert drawn.mean() == pytest.approx(0.5, abs=3 * (1 / 12 / 200) ** 0.5)
    config = load_recipe("text", ['rewards=[{type: "sage_grpo.lab.digits.run:lottery"}]'])
    reward, weights = build_rewards(config)
    assert reward.score(videos, [Prompt("a")] * 200).values[:, 0].tolist() == pytest.approx(drawn.tolist())
    assert weights == (1.0,)
