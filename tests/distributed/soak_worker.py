"""A process of a soaked run: `python -m distributed.soak_worker PLAN.json` under torchrun. It trains as a user's would.

It tells in a file of notes when it started, from where it went on and which samples it masked.
"""

import json
import os
import sys
from pathlib import Path

from distributed.soak_notes import memory, note

PLAN = json.loads(Path(sys.argv[1]).read_text())
note(PLAN["notes"], "start")  # before all that takes its time to import, so that it can be killed there, too

import hashlib
from collections import Counter

import torch

from distributed import traps
from distributed.soak_checks import half_that_loads, look
from distributed.soak_faults import expected, kinds
from distributed.soak_places import places
from sage_grpo.core.callback import Callback
from sage_grpo.core.windows import my_samples
from sage_grpo.distributed import checkpoint
from sage_grpo.distributed.processes import leave
from sage_grpo.distributed.storage import Storage
from sage_grpo.rewards.remote.http import HttpReward
from sage_grpo.training.trackers import read_metrics
from sage_grpo.training.trainer import Trainer


class Witness(Callback):
    def __init__(self, notes, seed, before):
        self.notes, self.seed, self.before = notes, seed, before

    def tell(self, what, **facts):
        note(self.notes, what, **facts)

    def on_start(self, loop):
        if self.before is None:
            return
        steps = [row["step"] for row in read_metrics(Path(loop.config.run.out) / "metrics.jsonl")]
        self.tell("resumed", at=loop.iteration, rows=steps == list(range(1, loop.iteration + 1)), **self.before)

    def on_rollout(self, loop, rollouts, scores, valid):
        mine = list(my_samples(loop.config.rollouts, loop.comm.num_replicas, loop.comm.replica))
        videos = torch.cat([batch.frames for batch in rollouts.videos])
        should = expected(videos, rollouts.prompts, self.seed)
        values, ok = scores[mine], valid[mine]
        self.tell(
            "rollout",
            iteration=loop.iteration,
            faults=Counter(kind for kind, _ in kinds(videos, rollouts.prompts, self.seed) if kind),
            masked=int((~ok.all(1)).sum()),
            wrong_masks=int((ok != should.valid).any(1).sum()),
            wrong_scores=int((values[ok] != should.values[ok]).sum()),
            videos=hashlib.sha256(videos.contiguous().numpy().tobytes()).hexdigest()[:16],
            mb=memory(os.getpid()),
        )


def break_something(kind):
    """To see that the soak sees it."""
    if kind == "resume":
        names = checkpoint.checkpoints
        checkpoint.checkpoints = lambda root: names(root)[:-1] or names(root)
    if kind == "score":
        ask = HttpReward._ask

        def zero(self, *asked):
            scores = ask(self, *asked)
            lost = ~scores.valid
            return type(scores)(scores.values.masked_fill(lost, 0.0), scores.valid | lost)

        HttpReward._ask = zero
    if kind == "half":
        Storage.begin = lambda self, step: (self.fs.makedirs(self._path(step), exist_ok=True), step)[1]
        Storage.publish = lambda self, work, step: None


def main():
    torch.set_num_threads(1)
    notes, recipe = PLAN["notes"], PLAN["recipe"]
    root = Path(recipe["run"]["out"]) / "checkpoints"
    break_something(PLAN["broken"])
    if PLAN["traps"]:
        traps.lay(Path(PLAN["traps"]), places(recipe["tuning"]["mode"]))
    before = look(root) | {"loadable_halves": half_that_loads(root)} if os.environ["RANK"] == "0" else None
    trainer = Trainer(config=recipe, callbacks=[Witness(notes, PLAN["seed"], before)])
    trainer.train()
    note(notes, "end")
    leave()


if __name__ == "__main__":
    main()
