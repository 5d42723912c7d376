"""`sage-grpo explain` as a user meets it: table, JSON, picture, mistakes."""

import json

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from sage_grpo import __version__
from sage_grpo.cli import app
from sage_grpo.math.kernels import KERNELS, kernel_table
from sage_grpo.math.schedule import sigma_schedule
from sage_grpo.report.kernels import regimes


def invoke(*arguments):
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80", "NO_COLOR": "1"})


@pytest.mark.parametrize("kernel", list(KERNELS))
def test_json_has_the_contracted_keys(kernel):
    result = invoke("explain", "--kernel", kernel, "--steps", "10", "--shift", "3", "--eta", "0.7", "--json")
    assert result.exit_code == 0
    rows = json.loads(result.stdout)
    assert [set(row) for row in rows] == [{"sigma", "sigma_next", "a", "b", "e", "std", "equalizer"}] * 10
    table = kernel_table(kernel, sigma_schedule(10, 3.0), 0.7)
    assert [row["std"] for row in rows] == table.s.tolist()  # full precision, not what fits a table
    assert [row["b"] for row in rows] == table.b.tolist()
    assert all((row["equalizer"] is None) == (row["std"] == 0) for row in rows)


def test_table_fits_eighty_columns_and_names_its_columns():
    result = invoke("explain", "--kernel", "sage", "--steps", "20", "--shift", "5", "--eta", "0.7")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert max(len(line) for line in lines) <= 80
    for word in ("step", "σ", "√Σ", "|b|", "N", "S"):
        assert word in result.stdout
    assert sum(line.strip()[:2].strip().isdigit() for line in lines) == 20


def test_second_order():
    result = invoke("explain", "--kernel", "precise", "--steps", "12", "--order", "2")
    assert max(len(line) for line in result.stdout.splitlines()) <= 80
    assert "second order" in result.stdout
    assert "|e|" in result.stdout
    rows = json.loads(invoke("explain", "--kernel", "precise", "--steps", "12", "--order", "2", "--json").stdout)
    assert [row["e"] != 0 for row in rows] == [False, False, *[True] * 9, False]
    assert "no form of second order" in " ".join(invoke("explain", "--order", "2").stdout.split())


@pytest.mark.slow
def test_plot_is_a_picture(tmp_path):
    path = tmp_path / "kernels.png"
    result = invoke("explain", "--plot", str(path))
    assert result.exit_code == 0
    with Image.open(path) as image:
        assert image.width > 1000
        assert len(image.convert("RGB").getcolors(maxcolors=1 << 24)) > 50  # lines were drawn


def test_regimes_show_what_figure_9_says():
    """(a) the integral collapses at step 1; (b) FlowGRPO explodes and sage does not; (c) sage stays lower later."""
    sigmas = sigma_schedule(20, 5.0)
    shared, clamped, own = regimes(sigmas).values()
    schedules = {"a": shared, "b": clamped, "c": own}
    std = {(n, i): kernel_table(n, s, 0.7).s for n in ("sage", "flow") for i, s in schedules.items()}
    assert std["sage", "a"][0] == 0
    assert std["flow", "b"][0] > 1.4 * std["sage", "b"][0]
    assert torch.all(std["sage", "c"][1:] < std["flow", "c"][1:])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--kernel", "sgae"), "did you mean 'sage'"),
        (("--steps", "0"), "greater than or equal to 1"),
        (("--kernel", "cps", "--eta", "3"), "use 0 to 1"),
        (("--plot", f"{__file__}/x.png"), "is a file, not a folder"),  # where a folder should be
        (("--plot", "x.docx"), "names no format of pictures"),
    ],
)
def test_mistakes_get_one_line_and_no_trace(arguments, message):
    result = invoke("explain", *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())
    assert "Traceback" not in result.output


def test_the_plain_ode_says_that_nothing_is_learnt():
    assert "nothing for GRPO to learn" in invoke("explain", "--eta", "0").stdout


def test_version_and_help():
    assert invoke("--version").stdout.strip() == f"sage-grpo {__version__}"
    for arguments in (("--help",), ("explain", "--help")):
        result = invoke(*arguments)
        assert result.exit_code == 0
        assert "sage-grpo lab" in result.stdout or "sage-grpo explain" in result.stdout  # an example to copy
