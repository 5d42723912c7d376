"""What processes really hold at once and how often they ask the network: `python -m plan.worker FOLDER CASE…`."""

import gc
import json
import sys
from collections import Counter
from pathlib import Path

import torch

from memory import PeakMemory
from plan.cases import ITERATIONS, LONG_TEXT, recipe
from sage_grpo.core.callback import Callback
from sage_grpo.distributed.processes import leave
from sage_grpo.training.trainer import Trainer

FIRST = 1  # iteration before it measures


def first_pixel(videos, prompts):
    """Takes no memory."""
    return [video[0, 0, 0, 0].item() for video in videos]


def held_tensors():
    """All tensors that exist now."""
    return [x for x in gc.get_objects() if isinstance(x, torch.Tensor)]


class Meter(Callback):
    """From the second iteration on: optimizer, anchor and average are there, and nothing is made for the first time.

    A busy core lets a thread of gloo free its messages late, and Python its reference cycles: of several iterations the
    one that holds least is what the work needs.
    """

    def __init__(self):
        self.passes, self.peaks, self.iterations = 0, Counter(), []

    def on_iteration(self, loop, metrics):
        if loop.iteration == FIRST:
            gc.collect()
            self.memory = PeakMemory(held_tensors())
            self.memory.__enter__()
            decode = loop.model.decode

            def decoding(x0):
                self.mark("rollout")
                try:
                    return decode(x0)
                finally:
                    self.mark("decode")

            loop.model.decode = decoding
            loop.model.shard_blocks[0].register_forward_pre_hook(self.count, with_kwargs=True)
        elif loop.iteration > FIRST:
            self.mark("train")
            self.iterations.append(self.peaks)
            self.peaks = Counter()
            gc.collect()
        if loop.iteration == ITERATIONS:
            self.memory.__exit__(None, None, None)

    @property
    def least(self):
        return {phase: min(peaks[phase] for peaks in self.iterations) for phase in self.iterations[0]}

    def on_rollout(self, *told):
        if hasattr(self, "memory"):
            self.mark("rollout")

    def mark(self, phase):
        """Phase `phase` ends."""
        self.peaks[phase] = max(self.peaks[phase], self.memory.peak)
        self.memory.restart()

    def count(self, block, inputs, named):
        self.passes += len(inputs[0] if inputs else named["hidden_states"])


def main():
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    for name in sys.argv[2:]:
        meter = Meter()
        trainer = Trainer(
            rewards=[first_pixel], config=recipe(name, folder), prompts=[LONG_TEXT, LONG_TEXT[::-1]], callbacks=[meter]
        )
        trainer.train()
        mine = {"passes": meter.passes // len(meter.iterations), "peaks": meter.least}
        found = trainer.processes.everybody(mine) if trainer.processes else [mine]
        if trainer.main:
            (folder / f"{name}.json").write_text(json.dumps(found))
        del trainer, meter
        gc.collect()
    leave()


if __name__ == "__main__":
    main()
