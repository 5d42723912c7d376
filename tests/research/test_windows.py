"""`python -m research windows`: what is compared, at which cost, and the tables on the page."""

from pathlib import Path

import pytest
from scipy import stats

from research.lab_run import Looks
from research.run_log import RunLog
from research.windows import (
    FIRST_SEED,
    RANGES,
    STEPS,
    TARGETS,
    a_run,
    as_markdown,
    cost,
    iterations,
    setting_of,
    until,
    verdicts,
)
from sage_grpo.config import load_recipe
from sage_grpo.core.passes import forward_passes
from support import make_config, make_loop

DOCS = Path(__file__).parents[2] / "docs"
SEEDS = range(FIRST_SEED, FIRST_SEED + 5)


def made_up(steps, window, seed, followed, at):
    """A run that follows `followed` of its prompts at the end, and 90 % after `at` of its 100 iterations."""
    curve = [[0, 0.6, 0.0], [at, 0.9, 0.7], [100, 0.9, 0.8]] if at else [[0, 0.6, 0.0], [100, 0.8, 0.5]]
    marks = "".join("1" if i < round(240 * followed) + seed % 3 else "0" for i in range(240))
    facts = {"width": 48, "setting": setting_of(steps, window), "seed": seed, "passes": 1000.0, "curve": curve}
    return facts | {"followed": marks, "flawed": "0" * 240, "distance": 0.15, "diversity": 0.2}


def test_cost_of_a_target_and_of_one_that_is_never_reached():
    reached, never = made_up(8, "anywhere", 0, 0.9, 40), made_up(8, "anywhere", 0, 0.8, None)
    assert until(reached, "followed") == 40
    assert cost(reached, "followed") == 400
    assert until(reached, "reward") == pytest.approx(70)  # straight lines between looks
    assert until(never, "followed") is None
    assert cost(never, "followed") == 1000
    at_once = reached | {"curve": [[0, 0.95, 0.9], [100, 0.95, 0.9]]}
    assert (until(at_once, "followed"), iterations(at_once, "followed")) == (0, 1)


def test_verdicts_hold_only_where_the_first_half_follows_more():
    share = {"first half": 0.95, "anywhere": 0.9, "last three quarters": 0.8}
    at = {"first half": 40, "anywhere": 80, "last three quarters": None}
    rows = [made_up(n, w, seed, share[w], at[w]) for n in STEPS for w in RANGES for seed in SEEDS]
    rows = [row | {"followed": row["followed"][row["seed"] % 2 :] + "0" * (row["seed"] % 2)} for row in rows]
    found = verdicts(rows)
    assert [(v.steps, v.other) for v in found] == [(n, w) for n in STEPS for w in list(RANGES)[1:]]
    assert all(v.holds for v in found)
    assert found[0].fewer["followed"].mean == pytest.approx(0.6931, abs=1e-3)  # half of the passes
    turned = [row | {"setting": row["setting"].replace("anywhere", "x")} for row in rows]
    turned = [row | {"setting": row["setting"].replace("first-half", "anywhere")} for row in turned]
    turned = [row | {"setting": row["setting"].replace("x-of", "first-half-of")} for row in turned]
    assert not any(v.holds for v in verdicts(turned) if v.other == "anywhere")


def test_p_values_are_scipys():
    counts = {"first half": (0.95, 0.94, 0.96, 0.95, 0.93), "anywhere": (0.92, 0.95, 0.93, 0.9, 0.92)}
    counts["last three quarters"] = counts["anywhere"]
    rows = [
        made_up(n, w, seed, shares[i], 50)
        for n in STEPS
        for w, shares in counts.items()
        for i, seed in enumerate(SEEDS)
    ]
    marks = {w: [row["followed"].count("1") for row in rows if row["setting"] == setting_of(8, w)] for w in counts}
    alone = stats.ttest_rel(marks["first half"], marks["anywhere"], alternative="greater").pvalue
    assert verdicts(rows)[0].p == pytest.approx(4 * alone)  # all four are equal, so Holm multiplies by four


def test_windows_of_one_number_of_steps_cost_the_same_passes():
    for steps in STEPS:
        jobs = [a_run(steps, window, FIRST_SEED, 240, Path("any")) for window in RANGES]
        costs = [forward_passes(job.recipe(), 2) * job.iterations for job in jobs]
        assert costs == pytest.approx([costs[0]] * 3, rel=0.01)
    assert load_recipe("lab").sampling.steps == STEPS[0]


def test_looks_are_at_equal_distances_and_at_both_ends():
    loop, _ = make_loop(make_config())
    looks = Looks(4, load_recipe("lab", ["run.iterations=10"]))
    looks.look = lambda loop: looks.rows.append([loop.iteration])
    looks.on_start(loop)
    for loop.iteration in range(1, 11):
        looks.on_iteration(loop, {})
    assert looks.rows == [[0], [3], [5], [8], [10]]


def test_the_page_has_the_tables_on_record():
    rows = list(RunLog(DOCS / "windows" / "runs.jsonl").read().values())
    text = (DOCS / "laboratory.md").read_text("utf-8")
    for table in as_markdown(rows).strip().split("\n\n"):
        assert table in text
    assert set(TARGETS) == set(verdicts(rows)[0].fewer)


def test_the_record_is_what_was_fixed():
    jobs = [a_run(steps, "first half", None, 240, Path("any")) for steps in STEPS]
    jobs += [a_run(steps, w, seed, 240, Path("any")) for steps in STEPS for w in RANGES for seed in SEEDS]
    assert {job.key for job in jobs} == RunLog(DOCS / "windows" / "runs.jsonl").read().keys()
