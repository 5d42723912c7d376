"""Our side of the comparison with other frameworks, and that it sees other work."""

import io
import json

import pytest

pytest.importorskip("diffusers")
pytest.importorskip("peft")

from peers import compare, ours, work
from peers.meter import ALONE
from peers.tiny import make_files

pytestmark = pytest.mark.slow


def answers(folder, guidance, iterations):
    """What our process would say, line by line."""
    checkpoint, prompts = make_files(folder, "tiny")
    out = io.StringIO()
    ours.train(checkpoint, prompts, folder / "run", guidance, False, io.StringIO(f"{ALONE}\n" * iterations), out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("guidance", "branches"), [(work.GUIDANCE, 2), (1.0, 1)], ids=["with guidance", "without guidance"]
)
def test_our_iteration_does_the_work_that_is_compared(tmp_path, guidance, branches):
    """8 pictures of 10 steps, of which 9 are trained, in batches of 4; guidance doubles the rows but not the calls."""
    facts, _, last = answers(tmp_path, guidance, iterations=2)  # the first asks no reference: nothing has changed yet
    trained = 72 * branches
    assert last["rows"] == {"rollout": 80 * branches, "reference": trained, "training": trained, "backward": trained}
    assert last["rows"] == work.expected(guidance)
    assert last["calls"] == {"rollout": 20, "reference": 18, "training": 18}
    assert last["optimizer_steps"] == 1
    assert 0 < last["alone"] < 3 * last["cpu"]
    # in both blocks eight layers of 32 × 32, but nobody reads the text's queries and outputs of the last
    assert facts["trained"] == 14 * 2 * 32 * work.RANK


def framework(name, **changes):
    iteration = {"cpu": 2.0, "alone": 1.0, "rows": work.expected(1.0), "optimizer_steps": 1}
    return compare.Framework(
        name, "ours", "python", None, facts={"versions": {"torch": "2"}}, iterations=[iteration | changes]
    )


@pytest.mark.parametrize(
    "other",
    [
        {"rows": work.expected(1.0) | {"training": 8}},
        {"rows": work.expected(work.GUIDANCE)},
        {"optimizer_steps": 2},
    ],
    ids=["one step trained", "guided", "two updates"],
)
def test_other_work_is_not_compared(other):
    compare.check_same_work([framework("a"), framework("b")], 1.0)
    with pytest.raises(SystemExit, match="b did other work"):
        compare.check_same_work([framework("a"), framework("b", **other)], 1.0)


def test_median_with_the_interval_of_the_tables():
    """Order statistics 6 and 15 of 20 cover the median with 95.9 % (Conover, Practical Nonparametric Statistics)."""
    assert compare.median(range(1, 21)) == (10.5, 6, 15)
    assert compare.median([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)  # too few for 95 %: all that there is
