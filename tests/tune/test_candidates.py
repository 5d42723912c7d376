"""What --try means, and what it refuses."""

import pytest

from sage_grpo.config import ConfigError, load_recipe
from sage_grpo.tune.candidates import make_candidates, parse


def test_lists_of_values():
    assert parse(["optimizer.lr=1e-4,3e-4", "sampling.window.range=[0,1],[0.25,1]"]) == {
        "optimizer.lr": ["1e-4", "3e-4"],
        "sampling.window.range": ["[0,1]", "[0.25,1]"],
    }


def test_all_combinations_are_tried():
    made = make_candidates("lab", [], ["optimizer.lr=1e-4,3e-4", "kl.high=0.1,0.5,2"])
    assert [candidate.overrides for candidate in made][:2] == [
        ("optimizer.lr=1e-4", "kl.high=0.1"),
        ("optimizer.lr=1e-4", "kl.high=0.5"),
    ]
    assert len({candidate.folder for candidate in made}) == 6
    assert not any(set(candidate.folder) & set("/ ,[]") for candidate in made)


def test_without_values_learning_rates_around_the_recipes_are_tried():
    made = make_candidates("lab", ["optimizer.lr=1e-4"], [])
    rates = [load_recipe("lab", list(candidate.overrides)).optimizer.lr for candidate in made]
    assert len(rates) == 9
    assert rates[4] == 1e-4
    assert rates == pytest.approx([1e-4 * 3 ** ((i - 4) / 2) for i in range(9)], rel=0.05)


@pytest.mark.parametrize(
    ("tried", "said"),
    [
        ("optimizer.lr", "not of the form key=value,value"),
        ("optimizer.lr=", "not of the form"),
        ("optimizer.lr=1e-4", "two values at least"),
        ("optimizer.lr=1e-4,1e-4", "none of them twice"),
        ("optimizer.rate=1,2", "did you mean optimizer.lr|unknown key"),
        ("optimizer.lr=-1,1", "greater than"),
        ("rewards=[],[{type: shapes}]", "do not compare"),
        ("run.iterations=1,2", "do not compare"),
        ("seed=1,2", "do not compare"),
    ],
)
def test_mistakes_are_told(tried, said):
    with pytest.raises(ConfigError, match=said):
        make_candidates("lab", [], [tried])
