"""SAGE-GRPO through its own trainer: `python -m peers.ours CHECKPOINT PROMPTS FOLDER GUIDANCE [extras]`."""

import sys

from peers import work
from peers.meter import Turns, serve
from sage_grpo import Trainer
from sage_grpo.core.callback import Callback

ENDLESS = 10**6


def recipe(checkpoint, prompts, folder, guidance, *, extras=False):
    """flow_grpo's algorithm in our settings. `extras` leaves TensorBoard, drift gauge and samples as they are."""
    run = {"out": str(folder), "iterations": ENDLESS, "save_every": ENDLESS}
    return {
        "seed": work.SEED,
        "model": {
            "type": "sd3",
            "path": str(checkpoint),
            "frames": 1,
            "height": work.SIDE,
            "width": work.SIDE,
            "guidance_scale": guidance,
            "options": {"text_tokens": work.TEXT_TOKENS},
        },
        "prompts": {"path": f"{prompts}/train.txt"},
        "sampling": {
            "kernel": "flow",
            "eta": work.NOISE,
            "steps": work.STEPS,
            "shift": 3.0,
            "shared_initial_noise": False,
        },
        "policy": {
            "prompts_per_iteration": len(work.PROMPTS),
            "num_generations": work.GROUP,
            "batch_size": work.BATCH,
            "clip": work.CLIP,
            "equalizer": False,
            "permute_timesteps": False,
        },
        "kl": {"anchor": "fixed", "old_weight": 0.0, "low": 0.0, "high": work.KL, "warmup": 0},
        "tuning": {
            "mode": "lora",
            "rank": work.RANK,
            "alpha": work.ALPHA,
            "targets": list(work.TARGETS),
            "guidance": "together",
            "device": "cpu",
        },
        "optimizer": {"lr": work.LEARNING_RATE},
        "run": run if extras else run | {"trackers": [], "sample_every": 0},
        **({} if extras else {"gauge": {"every": 0}}),
    }


class Iterations(Callback):
    def __init__(self, turns):
        self.turns = turns

    def on_start(self, loop):
        if not self.turns.wait():
            loop.stop("no further round")

    def on_iteration(self, loop, metrics):
        self.on_start(loop)


def reward(videos, prompts):
    return work.brightness(videos)


def train(checkpoint, prompts, folder, guidance, extras, words, answers):
    config = recipe(checkpoint, prompts, folder, guidance, extras=extras)
    trainer = Trainer(rewards=[reward], config=config)
    trainer.callbacks.append(Iterations(Turns(trainer.model.module, words, answers)))
    trainer.train()


if __name__ == "__main__":
    serve(train, *sys.argv[1:4], float(sys.argv[4]), "extras" in sys.argv[5:])
