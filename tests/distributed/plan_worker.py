"""What processes really hold for which a plan was made: `python -m distributed.plan_worker FOLDER CASE…`."""

import json
import sys
from pathlib import Path

import torch

from distributed.layouts import bytes_held
from distributed.worker import brightness, recipe
from sage_grpo.distributed.checkpoint import saved_tensors
from sage_grpo.distributed.processes import launched, leave
from sage_grpo.distributed.shard import local
from sage_grpo.training.trainer import Trainer


def settings(folder, case, processes):
    found = recipe(folder, case, folder / f"plan-{case}", 1, {})
    found["tuning"]["gradient_checkpointing"] = True
    found["kl"]["ref_model_sync_steps"] = 1  # until it is renewed, an anchor of adapters is the base itself
    return found | {"parallel": {"processes": processes}}


def measure(trainer):
    """Of this process, after an update."""
    saved = saved_tensors({"loop": trainer.loop.state_dict()})
    found = {"weights": bytes_held(trainer.model.module)}
    for kind in ("bank", "optimizer"):
        tensors = [local(t) for place, t in saved.items() if place.startswith(f"state/loop/{kind}/")]
        found[kind] = sum(t.numel() * t.element_size() for t in tensors)
    return found


def main():
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    for case in sys.argv[2:]:
        trainer = Trainer(rewards=[brightness], config=settings(folder, case, launched()), prompts=["a cat", "a dog"])
        trainer.train()
        found = trainer.processes.everybody(measure(trainer))
        if trainer.main:
            (folder / f"{case}.json").write_text(json.dumps(found))
    leave()


if __name__ == "__main__":
    main()
