"""Marks and cells of the tables, against answers worked out by hand."""

from dataclasses import replace

import pytest

from sage_grpo.evaluation.results import (
    Comparison,
    Difference,
    EvaluationResults,
    Interval,
    Mean,
    SourceSummary,
    TagComparison,
)
from sage_grpo.evaluation.scores import Score
from sage_grpo.evaluation.table import (
    ALONE,
    STANDS,
    decimals,
    grids,
    losses,
    main_table,
    markdown,
    percent,
    plain,
    ranked,
)


@pytest.mark.parametrize(
    ("values", "lower", "ranks"),
    [
        ([0.1, 0.4, 0.2, 0.3], False, [None, 1, 3, 2]),
        ([0.1, 0.4, 0.2, 0.3], True, [1, None, 2, 3]),
        ([0.5, 0.5, 0.1, 0.0], False, [1, 1, 3, None]),
        ([0.5, None, 0.1], False, [1, None, 2]),
        ([0.0, 0.0, 0.0, 0.0], False, [1, 1, 1, 1]),
    ],
)
def test_ranks(values, lower, ranks):
    assert ranked(values, lower) == ranks


@pytest.mark.parametrize(("values", "digits"), [([0.5], 3), ([12.0, 0.1], 2), ([0.0123], 4), ([0.0], 2), ([None], 2)])
def test_decimals(values, digits):
    assert decimals(values) == digits


def test_numbers_are_typeset():
    assert plain(-0.0004, 3, "+") == "+0.000"
    assert plain(-1.5, 2) == "−1.50"
    assert plain(None, 2) == "–"
    assert percent(Interval(0.625, 0.5, 0.75, 20)) == "62 [50, 75]"


def evaluated():
    def difference(mean, stands):
        wins = Interval(0.6, 0.5, 0.7, 20)
        return Difference(mean, mean - 0.1, mean + 0.1, 20, videos=40, p=0.01, wins=wins, stands=stands)

    scores = [
        Score("Overall", "", trained=True, lower=False),
        Score("VQ", "shapes", trained=True, lower=False, weight=0.5),
        Score("MQ", "shapes", trained=True, lower=False, weight=-1.0),
        Score("distance", "held", trained=False, lower=True),
    ]
    means = {"base": (0.1, 0.2, 0.1, 0.30), "paper": (0.5, 0.3, 0.1, 0.32), "best": (0.7, 0.1, 0.1, 0.31)}
    return EvaluationResults(
        {
            name: {s.name: Mean(v, v - 0.1, v + 0.1, 20, videos=40, masked=0) for s, v in zip(scores, row, strict=True)}
            for name, row in means.items()
        },
        [
            Comparison(a, b, s.name, difference(0.4, a == "best"))
            for a, b in (("paper", "base"), ("best", "base"), ("best", "paper"))
            for s in scores
        ],
        [TagComparison("kind", "x|y", "best", s.name, difference(0.05, False)) for s in scores],
        reference="base",
        sources={name: SourceSummary("untrained", "shapes", 8, 3.0, "0123") for name in means},
        prompts=20,
        seeds=[0, 1],
        scores=scores,
        note=None,
        masked={"base": {"VQ": {"it has no pixels": 3}}, "paper": {"VQ": {"timeout": 1}}},
    )


def test_the_main_table_has_the_shape_of_the_papers():
    text = markdown(evaluated())
    lines = text.splitlines()
    assert lines[2] == "| source | Overall ↑ | VQ ↑ | MQ ↑ | distance ↓ (held out) |"
    assert lines[4] == "| base | *0.100* | <u>0.200</u> | **0.100** | **0.300** |"
    assert lines[5] == "| paper | <u>0.500</u> | **0.300** | **0.100** | *0.320* |"
    assert lines[6] == "| best | **0.700** | *0.100* | **0.100** | <u>0.310</u> |"
    assert "Overall is 0.5·VQ − 1·MQ." in lines[8]
    assert "Not scored, and in no mean: VQ of 4 videos (it has no pixels)" in lines[8]


def test_differences_wins_and_tags():
    text = markdown(evaluated())
    assert f"| paper | +0.400 [+0.300, +0.500] {ALONE} |" in text
    assert f"| best | +0.400 [+0.300, +0.500] {STANDS} |" in text
    assert "| best | 60 [50, 70] | 60 [50, 70] | – |" in text  # row against column
    assert "| base | – | 40 [30, 50] | 40 [30, 50] |" in text
    assert "| kind: x\\|y | 20 | +0.050 [−0.050, +0.150] | +0.050 [−0.050, +0.150] |" in text  # Overall and held out
    assert "## Difference to base, held out" in text
    assert text.count("Benjamini-Hochberg") == 2  # of the differences, and of the tags


def test_what_got_worse_is_said():
    assert losses(evaluated()) == "Significantly worse than base (●): distance, held out (best)."


def test_a_score_without_any_value_is_a_dash():
    results = evaluated()
    for means in results.means.values():
        means["VQ"] = replace(means["VQ"], mean=None, low=None, high=None)
    assert [row[2] for row in main_table(results).rows] == ["–"] * 3
    assert len(grids(results)) == 6
