"""The progress of a run: a live display on a terminal, a plain line every few seconds anywhere else."""

import atexit
import math
import time
from collections import deque

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from torch import Tensor

from sage_grpo.core.callback import Callback, Metrics, Rollouts
from sage_grpo.core.loop import Loop
from sage_grpo.core.update import UpdateResult

LINE_EVERY = 5.0  # seconds between plain lines
LONG_PHASE = 3.0  # seconds after which it is worth saying what takes so long
RECENT = 10  # iterations that speed and time left are judged by: the first one is rarely typical


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"  # hours pass 24, for "1 day, 2:03:04" takes twice the room


def skipped(iteration: int, metrics: Metrics) -> str:
    """Return a sentence that says why iteration `iteration` did not change the weights."""
    failed = f"{metrics['reward/failed']:.0%} of its rewards failed"
    return f"iteration {iteration} trained nothing: {failed}, and no group has a difference among the others"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None or not math.isfinite(value) else format(value, form)


class ProgressCallback(Callback):
    """A callback that shows the progress of a run. Only the first replica shows it.

    `on_end` stops the display and shows the cursor again. If an error ends the run, Python's exit does this.
    """

    def __init__(self, total_iterations: int, rollouts_per_iteration: int, console: Console | None = None) -> None:
        self.total, self.rollouts, self.console = total_iterations, rollouts_per_iteration, console or Console()
        self._live: Live | None = None
        self._shown = False
        self._begin(0)

    def _begin(self, iteration: int) -> None:
        self._started = self._phase_began = self._iteration_began = time.monotonic()
        self._last_line = -math.inf
        self._iteration, self._phase = iteration, "rollout"
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._metrics: Metrics = {}
        self._first_reward: float | None = None

    def on_start(self, loop: Loop) -> None:
        self._begin(loop.iteration)
        self._shown = loop.comm.replica == 0
        if self._shown and self.console.is_terminal and not self.console.is_dumb_terminal:
            self._live = Live(self, console=self.console, refresh_per_second=4)
            atexit.register(self.close)
            self._live.start()

    def on_rollout(self, loop: Loop, rollouts: Rollouts, scores: Tensor, valid: Tensor) -> None:
        self._enter("update")
        self._line()

    def on_update(self, loop: Loop, result: UpdateResult) -> None:
        self._line()

    def on_iteration(self, loop: Loop, metrics: Metrics) -> None:
        now = time.monotonic()
        self._recent.append(now - self._iteration_began)
        self._iteration_began, self._iteration, self._metrics = now, loop.iteration, metrics
        if self._first_reward is None:
            self._first_reward = metrics.get("reward/mean")
        self._enter("rollout")
        self._line(force=self._iteration >= self.total)
        if self._shown and metrics.get("skipped_iterations"):
            self.console.print(skipped(self._iteration, metrics), markup=False, highlight=False, soft_wrap=True)

    def on_end(self, loop: Loop) -> None:
        self._phase = ""
        self.close()
        if self._shown and loop.stop_reason:
            self.console.print(f"stopped: {loop.stop_reason}", markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Stop the display and show the cursor again; a second call does nothing."""
        live, self._live = self._live, None
        if live:
            live.stop()
            atexit.unregister(self.close)

    def _enter(self, phase: str) -> None:
        self._phase, self._phase_began = phase, time.monotonic()

    def _line(self, force: bool = False) -> None:
        now = time.monotonic()
        if self._shown and self._live is None and (force or now - self._last_line >= LINE_EVERY):
            self._last_line = now
            parts = [f"iteration {self._iteration}/{self.total}", self.numbers(), self.times(), self.phase()]
            line = "  ".join(part for part in parts if part)
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def phase(self) -> str:
        """Return the current phase and its time so far, such as `update 0:00:12`, or "" in its first 3 seconds."""
        seconds = time.monotonic() - self._phase_began
        return f"{self._phase} {_clock(seconds)}" if self._phase and seconds >= LONG_PHASE else ""

    def times(self) -> str:
        elapsed = _clock(time.monotonic() - self._started)
        left = self.total - self._iteration
        if not self._recent or left <= 0:
            return elapsed
        pace = sum(self._recent) / len(self._recent)
        # Time already spent on this iteration counts down, so that the display never stands still.
        spent = min(time.monotonic() - self._iteration_began, pace)
        return f"{elapsed}, {_clock(left * pace - spent)} left"

    def numbers(self) -> str:
        """Return reward, KL, clip fraction and videos per second as text; empty until the first iteration has ended.

        The text has at most 75 characters, whatever the values.
        """
        if not self._recent:
            return ""
        reward, first = self._metrics.get("reward/mean"), self._first_reward
        change = None if reward is None or first is None else reward - first
        speed = self.rollouts * len(self._recent) / max(sum(self._recent), 1e-9)
        return (
            f"reward {_number(reward, '.4g')} ({_number(change, '+.3g')})"
            f"  KL {_number(self._metrics.get('kl/penalty'), '.2g')}"
            f"  clip {_number(self._metrics.get('clip_frac'), '.1%')}"
            f"  {_number(speed, '.3g')} videos/s"
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        row = Table.grid(expand=True, padding=(0, 1))
        row.add_column(no_wrap=True)
        row.add_column(ratio=1, min_width=8)
        row.add_column(no_wrap=True, justify="right")
        row.add_row(
            Text(f"iteration {self._iteration}/{self.total}", style="bold"),
            ProgressBar(total=max(self.total, 1), completed=self._iteration),
            Text("  ".join(part for part in (self.phase(), self.times()) if part)),
        )
        yield row
        yield Text(self.numbers() or "first iteration", no_wrap=True, overflow="ellipsis")
