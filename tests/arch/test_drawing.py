"""Every figure has the same look, because one module owns it."""

import re
from pathlib import Path

import pytest
from PIL import Image

from sage_grpo.drawing import WIDTH, drawn, legend_below

ROOT = Path(__file__).parents[2]
OWN_LOOK = re.compile(r"\bFigure\(|pyplot|savefig|rcParams|frameon|\.spines\[\[\"top\"")


def test_nobody_else_makes_a_figure():
    modules = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.py")]
    own = {path.name for path in modules if OWN_LOOK.search(path.read_text("utf-8"))}
    assert own == {"drawing.py"}


def test_figures_are_equally_wide_so_letters_are_equally_large(tmp_path):
    with drawn(tmp_path / "a.png", 3.0, "A title") as figure:
        for ax in figure.subplots(1, 2):
            ax.plot([0, 1], [0, 1], label="policy")
        legend_below(figure)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["policy"]
    assert not figure.axes[0].spines.top.get_visible()
    assert Image.open(tmp_path / "a.png").size == (130 * WIDTH, 390)


def test_a_figure_that_fails_leaves_no_half(tmp_path):
    with pytest.raises(ZeroDivisionError), drawn(tmp_path / "a.png", 3.0):
        _ = 1 / 0
    assert not list(tmp_path.iterdir())


def test_the_name_of_the_file_says_its_format(tmp_path):
    with drawn(tmp_path / "new" / "a.svg", 3.0) as figure:
        figure.subplots()
    assert "<svg" in (tmp_path / "new" / "a.svg").read_text("utf-8")
