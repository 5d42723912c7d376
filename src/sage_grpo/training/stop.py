"""Stops a run after an iteration, on all processes, when a signal asks for it."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from sage_grpo.core.callback import Callback, Metrics
from sage_grpo.core.loop import Loop


class CollectiveStop(Callback):
    """A callback that stops all processes after the same iteration once one of them receives a request to stop.

    Requests are exchanged at the start and after each iteration.
    """

    def __init__(self) -> None:
        self.request: str | None = None  # as a signal leaves it, at any moment

    def on_start(self, loop: Loop) -> None:
        wish = loop.stop_reason or self.request
        if loop.comm.mean(torch.tensor([float(wish is not None)])).item() > 0:
            loop.stop(wish or "another process was asked to stop")

    def on_iteration(self, loop: Loop, metrics: Metrics) -> None:
        self.on_start(loop)


@contextmanager
def stop_on_signal(stop: CollectiveStop) -> Iterator[None]:
    """On Ctrl-C, SIGTERM or SIGHUP, finish the iteration, save and end; a second Ctrl-C interrupts immediately.

    A second SIGTERM does not: schedulers send it to all processes, and torchrun passes its own on to the same ones.
    A closed terminal sends SIGHUP, unless `nohup` had it ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: object) -> None:
        if stop.request is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.request = stop.request or f"{signal.Signals(number).name} received"

    numbers = [signal.SIGINT, signal.SIGTERM]
    numbers += [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else []
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
