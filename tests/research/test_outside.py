"""`python -m research outside`: verdicts on made-up runs, equal cost, and the tables on the page."""

from pathlib import Path

import pytest
from scipy import stats

from research.outside import COMPARISONS, SETTINGS, WIDTHS, WIDTHS_OF, a_run, as_markdown, verdicts
from research.run_log import RunLog
from sage_grpo.core.passes import forward_passes

DOCS = Path(__file__).parents[2] / "docs"


def made_up(seed, setting, width, *, followed=0.95, distance=0.15, diversity=0.24):
    wobble = 0.001 * (seed * 7 % 5 - 2) * (1 if setting == "with" else -1)
    marks = "".join("1" if i < round(240 * followed) else "0" for i in range(240))
    facts = {"width": width, "setting": setting, "seed": seed, "passes": 1000.0}
    return facts | {
        "followed": marks,
        "flawed": "0" * 240,
        "distance": distance + wobble,
        "diversity": diversity - wobble,
    }


def test_an_adapter_may_follow_one_point_fewer_and_not_two():
    for followed, holds in ((0.948, True), (0.93, False)):
        rows = [
            made_up(seed, setting, width, followed=share, distance=0.15 - (setting == "adapter") / 100)
            | {"flawed": "1" * (3 + seed % 2 - 2 * (setting == "adapter")) + "0" * 236}
            for seed in range(10, 20)
            for width in WIDTHS
            for setting, share in (("adapter", followed), ("with", 0.95))
        ]
        found = {v.measure: v for v in verdicts(rows, "adapter", "with") if v.width == 48}
        assert {name for name, v in found.items() if not v.holds} == (set() if holds else {"followed"})
        assert found["flawed"].effect.mean < 0


def both(with_penalty, without_penalty):
    return [
        made_up(seed, setting, width, **values)
        for seed in range(10, 20)
        for width in WIDTHS
        for setting, values in (("with", with_penalty), ("without", without_penalty))
    ]


def test_what_is_surely_so_holds_and_what_is_not_does_not():
    better = {"distance": 0.14, "diversity": 0.25}
    assert all(found.holds for found in verdicts(both(better, {})))
    assert {found.measure for found in verdicts(both({}, better)) if found.holds} == {"followed"}
    fewer = {found.measure for found in verdicts(both({"followed": 0.9} | better, {})) if not found.holds}
    assert fewer == {"followed"}  # five points fewer, and three are allowed


def test_p_values_are_scipys():
    rows = both({"distance": 0.1495, "diversity": 0.2401}, {})
    for width in WIDTHS:
        (found,) = (v for v in verdicts(rows) if (v.width, v.measure) == (width, "distance"))
        values = {s: [r["distance"] for r in rows if (r["width"], r["setting"]) == (width, s)] for s in SETTINGS}
        alone = stats.ttest_rel(values["with"], values["without"], alternative="less").pvalue
        assert alone <= found.p <= 6 * alone * 1.000001


def test_all_settings_cost_the_same_passes():
    for width in WIDTHS:
        costs = []
        for setting in SETTINGS:
            run = a_run(width, setting, 10, 240, Path("any"))
            costs.append(forward_passes(run.recipe(), 2) * run.iterations)
        assert costs[1:] == pytest.approx(3 * costs[:1], rel=0.01)


def test_the_page_has_the_tables_on_record():
    rows = list(RunLog(DOCS / "outside" / "runs.jsonl").read().values())
    assert len({(row["width"], row["setting"], row["seed"]) for row in rows}) == len(rows)
    text = (DOCS / "laboratory.md").read_text("utf-8")
    for table in as_markdown(rows).strip().split("\n\n"):
        assert table in text
    assert all({v.measure for v in verdicts(rows, *names)} == margins.keys() for names, margins in COMPARISONS.items())


def test_the_record_is_of_the_recipe_as_it_ships():
    jobs = [a_run(width, "with", None, 240, Path("any")) for width in WIDTHS]
    jobs += [
        a_run(width, setting, seed, 240, Path("any"))
        for setting in SETTINGS
        for width in WIDTHS_OF[setting]
        for seed in range(10, 20)
    ]
    assert {job.key for job in jobs} == RunLog(DOCS / "outside" / "runs.jsonl").read().keys()


def test_seeds_differ_by_an_iteration_or_two():
    """Windows move with the seed, and equal passes are then another number of iterations."""
    numbers = {
        setting: {a_run(96, setting, seed, 240, Path("any")).iterations for seed in range(10, 20)}
        for setting in SETTINGS
    }
    assert numbers == {
        "with": {99, 100, 101},
        "without": {108, 109, 110},
        "adapter": {108, 109, 110},
        "everywhere": {108, 109, 110},
    }
