"""What processes really hold at once and how often they ask the network: `python -m plan.worker FOLDER CASE…`."""

import gc
import json
import sys
from collections import Counter
from pathlib import Path

import torch

from memory import PeakMemory
from plan.cases import LONG_TEXT, recipe
from sage_grpo.core.loop import Callback
from sage_grpo.distributed.processes import leave
from sage_grpo.training.trainer import Trainer


def first_pixel(videos, prompts):
    """Takes no memory."""
    return [video[0, 0, 0, 0].item() for video in videos]


def held_tensors():
    """All tensors that exist now."""
    return [x for x in gc.get_objects() if isinstance(x, torch.Tensor)]


class Meter(Callback):
    """The third iteration: optimizer, anchor and average are there, and nothing is made for the first time."""

    def __init__(self):
        self.passes, self.peaks = 0, Counter()

    def on_iteration(self, loop, metrics):
        if loop.iteration == 2:
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
        elif loop.iteration == 3:
            self.mark("train")
            self.memory.__exit__(None, None, None)

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
        mine = {"passes": meter.passes, "peaks": dict(meter.peaks)}
        found = trainer.processes.everybody(mine) if trainer.processes else [mine]
        if trainer.main:
            (folder / f"{name}.json").write_text(json.dumps(found))
        del trainer, meter
        gc.collect()
    leave()


if __name__ == "__main__":
    main()
