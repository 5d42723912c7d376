"""The table of docs/scaling.md is what `sage-grpo plan --sweep` says; CI plans one row of it, `make sweeps` all."""

import re
from pathlib import Path

import pytest

pytest.importorskip("diffusers")

from sage_grpo.config import load_recipe
from sage_grpo.preflight.plan.calibration import Calibration
from sage_grpo.preflight.plan.hardware import find_gpu
from sage_grpo.preflight.plan.sweep import sweep
from sweeps import further

PAGE = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text("utf-8")
NUMBER = r"([\d,.]+)"
ROW = rf"^\| {NUMBER} \| {NUMBER} \| {NUMBER} \| {NUMBER} min \| {NUMBER} \| {NUMBER} GB \| (yes|no)"
ROWS = re.findall(ROW, PAGE, re.MULTILINE)


def number(text):
    return float(text.replace(",", ""))


def test_the_table_is_found():
    assert len(ROWS) >= 9


@pytest.mark.slow
@pytest.mark.parametrize("row", [further(row, id="-".join(row)) if i else row for i, row in enumerate(ROWS)])
def test_a_row_is_what_is_planned(row):
    gpus, sequence, videos, minutes, rate, gigabytes = map(number, row[:-1])
    axes = {"gpus": [int(gpus)], "sp": [int(sequence)]}
    (cell,) = sweep(load_recipe("hunyuan15-64gpu"), find_gpu("h100-80g"), Calibration(), axes)
    assert cell.videos == videos
    assert cell.plan.iteration / 60 == pytest.approx(minutes, abs=0.051)
    assert cell.per_gpu_hour == pytest.approx(rate, abs=0.051)
    assert cell.plan.memory.peak / 1e9 == pytest.approx(gigabytes, abs=0.051)
