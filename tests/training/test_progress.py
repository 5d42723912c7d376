"""The display tells the truth, fits 80 columns and gives the terminal back."""

import atexit
import io
import math
import re
import time
from types import SimpleNamespace

import pytest
from rich.console import Console

from sage_grpo.core.callback import Callback
from sage_grpo.training import progress
from sage_grpo.training.progress import ProgressCallback
from support import make_config, make_loop

SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


class Clock:
    """Time that passes only when told to."""

    now = 1000.0

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def console(*, terminal, width=80):
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, height=24, color_system=None, _environ={})


def fake_loop(iteration=0, rank=0):
    return SimpleNamespace(iteration=iteration, comm=SimpleNamespace(replica=rank), stop_reason=None)


def metrics(reward=1.0, kl=1.5e-4, clip=0.125):
    return {"reward/mean": reward, "kl/penalty": kl, "clip_frac": clip}


def drawn(callback, width=80):
    page = console(terminal=True, width=width)
    page.print(callback)
    return page.file.getvalue().splitlines()


def run(callback, clock, iterations, *, rollout=2.0, update=8.0, start=0, rewards=None):
    loop = fake_loop(start)
    callback.on_start(loop)
    for i in range(start, start + iterations):
        clock.sleep(rollout)
        callback.on_rollout(loop, None, None, None)
        clock.sleep(update)
        callback.on_update(loop, None)
        loop.iteration = i + 1
        callback.on_iteration(loop, metrics(rewards[i - start] if rewards else 1.0))
    return loop


def test_numbers_are_right(clock):
    callback = ProgressCallback(20, 30, console(terminal=False))
    run(callback, clock, 4, rewards=[0.5, 0.25, 9.0, 0.75])
    assert callback.numbers() == "reward 0.75 (+0.25)  KL 0.00015  clip 12.5%  3 videos/s"
    assert callback.times() == "0:00:40, 0:02:40 left"
    clock.sleep(4)
    assert callback.times() == "0:00:44, 0:02:36 left"
    clock.sleep(100)  # far over its time: the iteration may end any moment, the others still need theirs
    assert callback.times() == "0:02:24, 0:02:30 left"


def test_a_slow_first_iteration_is_forgotten(clock):
    callback = ProgressCallback(100, 10, console(terminal=False))
    run(callback, clock, 1, update=1000.0)
    loop = fake_loop(1)
    for i in range(2, 20):
        clock.sleep(10)
        loop.iteration = i
        callback.on_iteration(loop, metrics())
    assert callback.numbers().endswith(" 1 videos/s")
    assert callback.times().endswith("0:13:30 left")  # 81 × 10 s


def test_a_resumed_run_counts_its_own_time(clock):
    callback = ProgressCallback(20, 30, console(terminal=False))
    clock.sleep(500)  # loading the model is no part of it
    callback.on_start(fake_loop(10))
    assert "10/20" in drawn(callback)[0]
    assert callback.times() == "0:00:00"
    run(callback, clock, 2, start=10, rewards=[5.0, 7.0])
    assert callback.times() == "0:00:20, 0:01:20 left"
    assert "(+2)" in callback.numbers()
    assert "12/20" in drawn(callback)[0]


def test_the_phase_shows_when_it_lasts(clock):
    callback = ProgressCallback(20, 30, console(terminal=False))
    loop = run(callback, clock, 1)
    assert "rollout" not in drawn(callback)[0]
    clock.sleep(12)
    assert "rollout 0:00:12" in drawn(callback)[0]
    callback.on_rollout(loop, None, None, None)
    clock.sleep(2)
    assert "update" not in drawn(callback)[0]
    clock.sleep(3)
    assert "update 0:00:05" in drawn(callback)[0]
    callback.on_end(loop)
    assert "update" not in drawn(callback)[0]


@pytest.mark.parametrize("extreme", [-1.2345678e-5, -123456.789, math.nan, math.inf, 1.2345e300])
def test_fits_80_columns_whatever_the_values(clock, extreme):
    callback = ProgressCallback(100000, 123456, console(terminal=False))
    run(callback, clock, 2, start=99990 - 2, update=400000.0, rewards=[1 / 3, extreme])
    callback._metrics = metrics(extreme, 1.2345e-10, 0.98765)
    clock.sleep(40000)
    lines = drawn(callback)
    assert len(lines) == 2
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)
    assert "videos/s" in lines[1]
    assert lines[0].endswith(" left")
    assert " 233:20:04, " in lines[0]  # 840 004 s: hours beyond a day are not lost
    assert [len(line) <= 45 for line in drawn(callback, width=45)] == [True, True]  # cut, not wrapped


def test_missing_numbers_are_dashes(clock):
    callback = ProgressCallback(5, 8, console(terminal=False))
    loop = fake_loop()
    callback.on_start(loop)
    assert drawn(callback)[1] == "first iteration"
    clock.sleep(1)
    loop.iteration = 1
    callback.on_iteration(loop, {"kl_weight": 0.0})  # no reward was valid and nothing was trained
    assert callback.numbers() == "reward - (-)  KL -  clip -  8 videos/s"


def test_plain_lines_come_every_five_seconds_and_at_the_end(clock):
    page = console(terminal=False, width=40)
    callback = ProgressCallback(23, 8, page)
    run(callback, clock, 23, rollout=0.5, update=0.5)
    text = page.file.getvalue()
    lines = text.splitlines()
    assert "\x1b" not in text
    text.encode("ascii")
    assert all(line.startswith("iteration ") for line in lines)  # longer than the page, yet not broken in two
    # The clock reads 0.5 s at the first event; from then on every 5 s, and the last iteration in any case.
    assert [int(line.split()[1].split("/")[0]) for line in lines] == [0, 5, 10, 15, 20, 23]


def test_an_iteration_that_trains_nothing_says_so(clock):
    page = console(terminal=False)
    callback = ProgressCallback(2, 8, page)
    loop = fake_loop()
    callback.on_start(loop)
    loop.iteration = 1
    callback.on_iteration(loop, metrics() | {"skipped_iterations": 0.0, "reward/failed": 0.0})
    loop.iteration = 2
    callback.on_iteration(loop, {"skipped_iterations": 1.0, "reward/failed": 0.5})
    (line,) = [line for line in page.file.getvalue().splitlines() if "nothing" in line]
    assert line.startswith("iteration 2 trained nothing: 50% of its rewards failed")


def test_other_processes_are_silent(clock):
    for terminal in (True, False):
        page = console(terminal=terminal)
        callback = ProgressCallback(2, 8, page)
        loop = fake_loop(rank=1)
        callback.on_start(loop)
        clock.sleep(60)
        callback.on_iteration(loop, metrics())
        loop.stop_reason = "enough"
        callback.on_end(loop)
        assert page.file.getvalue() == ""


def test_the_terminal_is_given_back(clock):
    page = console(terminal=True)
    callback = ProgressCallback(2, 8, page)
    loop = run(callback, clock, 2)
    assert page.file.getvalue().count(HIDE_CURSOR) == 1
    assert SHOW_CURSOR not in page.file.getvalue()
    loop.stop_reason = "reward [below] 0"
    callback.on_end(loop)
    callback.on_end(loop)  # a second time does no harm
    text = page.file.getvalue()
    assert text.rfind(SHOW_CURSOR) > text.rfind(HIDE_CURSOR)
    assert "2/2" in text
    assert "stopped: reward [below] 0" in text


def test_an_error_in_the_loop_still_gives_the_terminal_back(clock, monkeypatch):
    """The loop tells no one of an error; Python's exit does."""
    registered = []
    monkeypatch.setattr(atexit, "register", registered.append)
    page = console(terminal=True)
    ProgressCallback(2, 8, page).on_start(fake_loop())
    assert SHOW_CURSOR not in page.file.getvalue()
    (at_exit,) = registered
    at_exit()
    assert SHOW_CURSOR in page.file.getvalue()


@pytest.mark.slow
def test_with_the_real_loop(monkeypatch):
    """The names of the metrics are the loop's; the display refreshes by itself while the loop works."""
    page, config, slow = console(terminal=True), make_config(), Callback()
    monkeypatch.setattr(slow, "on_rollout", lambda *_: time.sleep(0.4))
    callback = ProgressCallback(3, config.rollouts, page)
    loop, recorder = make_loop(config, callbacks=[callback, slow])
    loop.run(3)
    text = page.file.getvalue()
    assert re.search(r"iteration 3/3 ", text)
    assert f"reward {recorder.metrics[-1]['reward/mean']:.4g} (" in text
    last = text.rsplit("reward ", 1)[1]
    assert not re.search(r"(KL|clip) -", last)
    assert "1/3" in text
