"""The algorithm learns, and its trust regions do what is claimed of them, with intervals over seeds."""

import math

import pytest

from e2e.trust_regions import LEVELS, STRATEGIES, measure

pytestmark = pytest.mark.slow

FAR = LEVELS[1]
SEEDS = 5  # `make trust-regions SEEDS=10` for the table of the documentation


@pytest.fixture(scope="module")
def result():
    return measure(seeds=SEEDS)


def test_reward_rises_in_under_two_minutes(result):
    for strategy in STRATEGIES:
        gain = result.gain[strategy]
        assert gain.mean > 3 * gain.se, (strategy, gain)
    assert result.seconds < 120


def test_every_trust_region_holds_the_policy_nearer_to_the_data_at_equal_reward(result):
    for strategy, level in (("fixed", LEVELS[0]), ("step", FAR), ("moving", FAR), ("dual", FAR)):
        effect = result.effect[strategy, "none", level]
        assert effect.high < 0, (strategy, effect)
    assert math.exp(result.effect["moving", "none", FAR].mean) < 0.9


def test_a_fixed_anchor_underfits_and_a_moving_one_does_not(result):
    assert result.effect["fixed", "none", FAR] is None  # never gets that far
    assert result.gain["moving"].mean > 5 * result.gain["fixed"].mean


def test_velocity_control_alone_holds_less_than_position_control(result):
    step, moving = (result.effect[s, "none", FAR] for s in ("step", "moving"))
    assert moving.high < step.low
