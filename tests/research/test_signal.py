"""`python -m research signal`: its table is on the page, and one look of it runs."""

from pathlib import Path

import pytest

from research.signal import Look

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.slow
def test_with_guidance_the_first_step_decides_and_the_last_does_not():
    first, last = (Look(2, 8, start).run()["mixed"].count("1") for start in (0, 6))
    assert first > 15
    assert last < 5
