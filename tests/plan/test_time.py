"""Seconds, failures and cost: against closed forms and a simulation."""

import math
import random

import pytest

from sage_grpo.preflight.plan.assumptions import CASES, EXPOSED, UNMEASURED, assume, kernel_of, rows
from sage_grpo.preflight.plan.calibration import Calibration, calibrate, read_calibration, write_calibration
from sage_grpo.preflight.plan.hardware import (
    GPUS,
    PassTime,
    ProcessGroup,
    at_roofline,
    find_gpu,
)
from sage_grpo.preflight.plan.interruptions import Saving, best_interval, lost_share
from sage_grpo.preflight.plan.operations import Operation

H100 = GPUS["h100-80g"]
USUAL = assume("expected")


def test_an_operation_is_bound_by_arithmetic_or_by_memory():
    matmul = {Operation(H100.flops * USUAL.matrices, 1.0, "matrices"): 2}  # a second of arithmetic, twice
    copy = {Operation(0.0, H100.bandwidth * USUAL.memory / 4, "elementwise"): 8}  # a quarter of a second, eight times
    assert at_roofline(matmul, H100, USUAL) == pytest.approx(2.0)
    assert at_roofline(copy, H100, USUAL) == pytest.approx(2.0)
    assert at_roofline(matmul | copy, H100, USUAL) == pytest.approx(4.0)


@pytest.mark.parametrize("kind", ["matrices", "attention", "convolutions"])
def test_every_kind_of_work_has_its_own_share(kind):
    second = {Operation(H100.flops * getattr(USUAL, kind), 1.0, kind): 1}
    assert at_roofline(second, H100, USUAL) == pytest.approx(1.0)


def test_messages_of_weights_overlap_with_arithmetic_but_for_a_share():
    assert PassTime(4.0, 1.0, 0.5, exposed=0.0).seconds == pytest.approx(4.5)
    assert PassTime(4.0, 1.0, 0.5, exposed=0.1).seconds == pytest.approx(4.6)
    assert PassTime(1.0, 4.0, 0.5, exposed=0.1).seconds == pytest.approx(4.6)
    assert PassTime(4.0, 1.0, 0.5, exposed=1.0).seconds == pytest.approx(5.5)


def test_every_row_goes_from_slow_to_fast_and_says_where_it_comes_from():
    for kernel in ("chosen", "flash", "cudnn", "flash3"):
        for wide in (True, False):
            for name, row in rows(kernel, wide=wide):
                values = [row.at(case) for case in CASES]
                slower_is_more = name in ("hop", "exposed", "score_seconds")
                assert values == sorted(values, reverse=slower_is_more), name
                assert row.source.endswith(".")
                assert [getattr(assume(case, kernel, wide=wide), name) for case in CASES] == values


def test_a_calibration_leaves_a_range_only_where_a_run_says_nothing():
    slow, usual = (assume(case, calibrated=True) for case in ("slow", "expected"))
    assert {name for name, _ in rows("chosen", wide=True) if getattr(slow, name) != getattr(usual, name)} == {
        *UNMEASURED
    }
    assert usual == assume("expected")
    assert Calibration(rollout=0.8).calibrated
    assert not Calibration().calibrated


def test_kernels_by_the_names_of_diffusers():
    names = {None: "chosen", "flash": "flash", "_native_flash": "flash", "_native_cudnn": "cudnn", "native": "chosen"}
    assert {name: kernel_of(name) for name in names} == names
    assert kernel_of("_flash_3") == kernel_of("_flash_3_hub") == "flash3"
    assert assume("expected", "cudnn").attention > assume("expected", "flash").attention
    assert EXPOSED.fast == 0


def test_messages_of_a_ring():
    inside, outside = ProcessGroup(8, 1), ProcessGroup(64, 8)
    assert ProcessGroup(1, 1).seconds(1e9, 10, H100, USUAL) == 0
    assert inside.seconds(1e9, 0, H100, USUAL) == pytest.approx(1e9 * 7 / 8 / (USUAL.links * H100.link))
    expected = 1e9 * 63 / 64 / (USUAL.links * H100.network) + 3 * 63 * USUAL.hop
    assert outside.seconds(1e9, 3, H100, USUAL) == pytest.approx(expected)


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
