"""What the trainer costs beside the network: one iteration against the same passes in a bare loop, side by side.

    python -m e2e.overhead --rounds 12 --window 1

The bare loop makes the same transformer passes (rollout, anchor, forward and backward, guided), decodes the same videos
and steps the same optimizer, with nothing of ours in between. With a window fewer steps are trained, and those before
it are walked once for the group: all else then weighs more.
"""

import argparse
import tempfile
import time
from collections import Counter

import torch

from sage_grpo.core.callback import Callback
from sage_grpo.models import contract, ragged_text
from sage_grpo.models.hunyuan15 import HunyuanVideo15
from sage_grpo.training.trainer import Trainer

STEPS, GROUP, BATCH = 8, 4, 2
FIRST = 3  # steps before a window


def make_trainer(folder, window):
    path = contract.make_checkpoint(HunyuanVideo15, f"{folder}/checkpoint")
    frames, height, width = HunyuanVideo15.tiny_size
    recipe = {
        "model": {
            "type": "hunyuan15",
            "path": path,
            "frames": frames,
            "height": height,
            "width": width,
            "guidance_scale": 6.0,
            "options": dict(HunyuanVideo15.tiny_options),
        },
        "tuning": {"mode": "lora", "rank": 4},
        "sampling": {"steps": STEPS} | ({"window": {"size": window, "start": FIRST}} if window else {}),
        "policy": {"prompts_per_iteration": 1, "num_generations": GROUP, "batch_size": BATCH},
        "kl": {"ref_model_sync_steps": 10**6},  # right after a renewal the anchor is not asked
        "run": {"out": f"{folder}/run", "iterations": 1, "sample_every": 0},
    }
    return Trainer(
        config=recipe,
        rewards=[lambda videos, prompts: [v.float().mean().item() for v in videos]],
        prompts=["a red cat runs"],
    )


class Bare:
    """The passes of one iteration, as one would write them by hand."""

    def __init__(self, trainer, window):
        self.prefix, self.steps = (FIRST, window) if window else (0, STEPS - 1)
        self.model, self.trained = trainer.model, [p for p in trainer.model.module.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained, lr=0.0)
        prompt = trainer.prompts(0, 1)[0]
        condition = self.model.encode([prompt] * BATCH)
        self.x = torch.randn(BATCH, *self.model.latent_shape(prompt))
        zeros, mask = torch.zeros_like(self.x), torch.zeros_like(self.x[:, :1])
        names = ("text", "glyphs")
        sides = [{name: condition[prefix + name] for name in names} for prefix in ("", "negative_")]
        self.words = {
            rows: ragged_text.together([{name: x[:rows] for name, x in side.items()} for side in sides])
            for rows in (1, BATCH)
        }
        self.fixed = (zeros, mask)

    def guided(self, t, rows=BATCH):
        """Both branches in one pass, as we make them."""
        seen = torch.cat([torch.cat([x[:rows] for x in (self.x, *self.fixed)], 1)] * 2)
        both = self.model.pipe.transformer(seen, torch.full((2 * rows,), t), words=self.words[rows])
        positive, negative = both.chunk(2)
        return negative + 6.0 * (positive - negative)

    def iteration(self):
        with torch.no_grad():
            for i in range(self.prefix):
                self.guided(1000.0 - 100 * i, 1)
            for _ in range(GROUP // BATCH):
                for i in range(self.prefix, STEPS):
                    self.guided(1000.0 - 100 * i)
                self.model.pipe.vae.decode(self.x / self.model.pipe.vae.config.scaling_factor)
            for _ in range((GROUP // BATCH) * self.steps):
                self.guided(500.0)
        self.optimizer.zero_grad()
        for _ in range((GROUP // BATCH) * self.steps):
            self.guided(500.0).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.optimizer.step()


def clocks():
    """Wall and processor time: the second one does not see what else the machine does."""
    return torch.tensor([time.perf_counter(), time.process_time()], dtype=torch.float64)


class Timer(Callback):
    def __init__(self, bare):
        self.bare, self.ours, self.theirs, self.mark = bare, [], [], None
        self.work = Counter()  # passes and videos of them, with and without gradient
        bare.model.module.register_forward_pre_hook(self.count, with_kwargs=True)

    def count(self, module, inputs, named):
        rows = len(inputs[0] if inputs else named["hidden_states"])
        self.work[rows, torch.is_grad_enabled()] += 1

    def on_iteration(self, loop, metrics):
        now, done = clocks(), self.work
        self.work = Counter()
        if self.mark is not None:
            self.ours.append(now - self.mark)
        self.bare.iteration()
        assert self.mark is None or self.work == done, f"other work than the bare loop's: {done}, {self.work}"
        self.mark, self.work = clocks(), Counter()
        self.theirs.append(self.mark - now)


def measure(rounds, window=None):
    """(wall, processor) seconds of each iteration, ours and bare, taken in turn; shape (rounds, 2)."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(folder, window)
        timer = Timer(Bare(trainer, window))
        # the gauge and the start-up checks run on some iterations only, and are passes of their own: not in the ratio
        settings = {
            "run": trainer.config.run.model_copy(update={"iterations": rounds + 2, "save_every": 10**6}),
            "gauge": trainer.config.gauge.model_copy(update={"every": 0}),
        }
        trainer.config = trainer.config.model_copy(update=settings)
        trainer.gauge.config = trainer.config.gauge
        trainer.callbacks = [timer]
        trainer.train()
    return torch.stack(timer.ours[1:]), torch.stack(timer.theirs[1:-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--window", type=int, help="stochastic steps; all without it")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    ours, theirs = measure(asked.rounds, asked.window)
    for i, name in enumerate(("wall", "processor")):
        ratios = sorted((ours[:, i] / theirs[:, i]).tolist())
        low, high = ratios[len(ratios) // 4], ratios[-len(ratios) // 4]
        print(
            f"{name} time an iteration: {ours[:, i].median():.3f} s, bare loop {theirs[:, i].median():.3f} s, ratio "
            f"{ratios[len(ratios) // 2]:.3f} (median of {len(ratios)}, quartiles {low:.2f}, {high:.2f})"
        )


if __name__ == "__main__":
    main()
