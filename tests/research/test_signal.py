"""`python -m research signal`: its table is on the page, and one look of it runs."""

from pathlib import Path

import pytest

from research.run_log import RunLog
from research.signal import Look, as_markdown

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_has_the_table_on_record():
    rows = list(RunLog(DOCS / "laboratory" / "signal" / "runs.jsonl").read().values())
    assert as_markdown(rows).strip() in (DOCS / "laboratory.md").read_text("utf-8")


@pytest.mark.slow
def test_with_guidance_the_first_step_decides_and_the_last_does_not():
    first, last = (Look(2, 8, start).run()["mixed"].count("1") for start in (0, 6))
    assert first > 15
    assert last < 5
