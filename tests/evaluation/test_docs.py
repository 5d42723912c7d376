"""Pages that hold figures of an evaluation hold those of the last one."""

import json
from collections import Counter
from pathlib import Path

from sage_grpo.evaluation.results import EvaluationResults
from sage_grpo.evaluation.table import markdown

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_has_the_tables_of_the_last_run():
    written, page = (DOCS / "eval" / "table.md").read_text(), (DOCS / "evaluate.md").read_text()
    results = EvaluationResults.from_json(json.loads((DOCS / "eval" / "results.json").read_text()))
    assert written == markdown(results)
    for part in written.split("## "):
        if part.startswith(("Scores", "Difference", "Win rate by")):
            assert part.split("\n", 1)[1].strip() in page
    assert (DOCS / "eval" / "report.html").stat().st_size < 2_000_000


def test_results_of_the_last_run_are_read_and_written_as_they_are():
    """Every key, in its order: results.json is what others build on."""
    text = (DOCS / "eval" / "results.json").read_text()
    content = EvaluationResults.from_json(json.loads(text)).to_json()
    assert json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n" == text


def test_the_datasheet_counts_right():
    sheet = (DOCS / "prompt-set.md").read_text()
    path = DOCS.parent / "src" / "sage_grpo" / "data" / "prompt_sets" / "videos.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert f"{len(rows)} prompts" in sheet
    for tag in rows[0]["tags"]:
        counts = Counter(row["tags"][tag] for row in rows)
        assert f"| {tag} | " + ", ".join(f"{value} {n}" for value, n in counts.most_common()) + " |" in sheet
    lengths = [len(row["prompt"].split()) for row in rows]
    assert f"{min(lengths)} to {max(lengths)}" in sheet
