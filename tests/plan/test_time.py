"""Seconds, failures and cost: against closed forms and a simulation."""

import math
import random

import pytest

from sage_grpo.plan.calibration import Calibration, calibrate, read_calibration, write_calibration
from sage_grpo.plan.hardware import (
    COMPUTE_SHARE,
    GPUS,
    HOP,
    LINK_SHARE,
    MEMORY_SHARE,
    ProcessGroup,
    at_roofline,
    find_gpu,
)
from sage_grpo.plan.interruptions import Saving, best_interval, lost_share

H100 = GPUS["h100-80g"]


def test_an_operation_is_bound_by_arithmetic_or_by_memory():
    matmul = {(H100.flops * COMPUTE_SHARE, 1.0): 2}  # a second of arithmetic, twice
    copy = {(0.0, H100.bandwidth * MEMORY_SHARE / 4): 8}  # a quarter of a second of memory, eight times
    assert at_roofline(matmul, H100) == pytest.approx(2.0)
    assert at_roofline(copy, H100) == pytest.approx(2.0)
    assert at_roofline(matmul | copy, H100) == pytest.approx(4.0)


def test_messages_of_a_ring():
    inside, outside = ProcessGroup(8, 1), ProcessGroup(64, 8)
    assert ProcessGroup(1, 1).seconds(1e9, 10, H100) == 0
    assert inside.seconds(1e9, 0, H100) == pytest.approx(1e9 * 7 / 8 / (LINK_SHARE * H100.link))
    assert outside.seconds(1e9, 3, H100) == pytest.approx(1e9 * 63 / 64 / (LINK_SHARE * H100.network) + 3 * 63 * HOP)


def simulate(interval, saving, between, work, rng):
    """Seconds until `work` seconds of training are done and saved; failures at random moments."""
    clock = done = saved = 0.0
    pending = None  # when files that are being written will be whole, and what they hold
    failure = rng.expovariate(1 / between)
    while saved < work:
        goal = min(done + interval, work) - done
        end = clock + goal
        if pending and pending[0] <= min(end, failure):
            saved, pending = pending[1], None
        if failure < end + saving.stall:
            clock = failure + saving.restart
            done, pending = saved, None
            failure = clock + rng.expovariate(1 / between)
            continue
        clock, done = end + saving.stall, done + goal
        if pending:  # a save waits for the one before it
            clock, saved = max(clock, pending[0]), pending[1]
        pending = (clock + saving.write, done)
        if done >= work:
            clock, saved = pending[0], done
    return clock


@pytest.mark.parametrize("interval", [200.0, 1_000.0, 5_000.0])
def test_lost_time_is_that_of_a_simulation(interval):
    saving, between, work = Saving(stall=5.0, write=60.0, restart=300.0), 40_000.0, 400_000.0
    rng = random.Random(0)
    runs = [1 - work / simulate(interval, saving, between, work, rng) for _ in range(300)]
    mean = sum(runs) / len(runs)
    error = math.sqrt(sum((x - mean) ** 2 for x in runs) / len(runs) ** 2)
    print(f"interval {interval:.0f} s: formula {lost_share(interval, saving, between):.4f}, {mean:.4f} ± {error:.4f}")
    assert lost_share(interval, saving, between) == pytest.approx(mean, abs=3 * error + 0.005)


@pytest.mark.parametrize(
    ("stall", "between", "iteration"), [(0.1, 1e5, 60), (5, 1e4, 10), (30, 1e6, 300), (1, 100, 90)]
)
def test_the_best_interval_loses_least(stall, between, iteration):
    saving = Saving(stall, 60.0, 300.0)
    best = best_interval(saving, between, iteration)
    least = math.ceil(saving.write / iteration)
    losses = {n: lost_share(n * iteration, saving, between) for n in range(max(least, 1), 20 * best + 2)}
    assert losses[best] == min(losses.values())


def test_a_calibration_turns_planned_seconds_into_measured_ones(tmp_path):
    planned = {"rollout": 30.0, "decode": 10.0, "anchor": 15.0, "old policy": 5.0, "train": 60.0}
    rows = [{"seconds/rollout": 999.0, "seconds/score": 9.0, "seconds/update": 999.0}]  # the first warms up
    rows += [{"seconds/rollout": 80.0, "seconds/score": 6.0, "seconds/update": 100.0}] * 3
    found = calibrate(rows, planned, 4, "h100-80g", "run")
    assert (found.rollout, found.update, found.score_seconds) == (0.5, 0.8, 1.5)
    write_calibration(tmp_path / "c.yaml", found)
    assert read_calibration(tmp_path / "c.yaml") == found
    with pytest.raises(ValueError, match="two or more"):
        calibrate(rows[:1], planned, 4, "h100-80g", "run")
    (tmp_path / "c.yaml").write_text("rolout: 1")
    with pytest.raises(ValueError, match="rollout, update"):
        read_calibration(tmp_path / "c.yaml")
    assert Calibration().rollout == 1


def test_an_unknown_gpu_names_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'h100-80g'"):
        find_gpu("h100")
