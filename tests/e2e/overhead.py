"""What the trainer costs beside the network: one iteration against the same passes in a bare loop, side by side.

    python -m e2e.overhead --rounds 12

The bare loop makes the same transformer passes (rollout, anchor, forward and backward, guided), decodes the same videos
and steps the same optimizer, with nothing of ours in between.
"""

import argparse
import tempfile
import time

import torch

from sage_grpo.core.loop import Callback
from sage_grpo.models import contract
from sage_grpo.models.hunyuan15 import HunyuanVideo15
from sage_grpo.training.trainer import Trainer

STEPS, GROUP, BATCH = 8, 4, 2


def make_trainer(folder):
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
        "sampling": {"steps": STEPS},
        "policy": {"prompts_per_iteration": 1, "num_generations": GROUP, "batch_size": BATCH},
        "run": {"out": f"{folder}/run", "iterations": 1, "sample_every": 0},
    }
    return Trainer(
        config=recipe,
        rewards=[lambda videos, prompts: [v.float().mean().item() for v in videos]],
        prompts=["a red cat runs"],
    )


class Bare:
    """The passes of one iteration, as one would write them by hand."""

    def __init__(self, trainer):
        self.model, self.trained = trainer.model, [p for p in trainer.model.module.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained, lr=0.0)
        prompt = trainer.prompts(0, 1)[0]
        condition = self.model.encode([prompt] * BATCH)
        self.x = torch.randn(BATCH, *self.model.latent_shape(prompt))
        zeros, mask = torch.zeros_like(self.x), torch.zeros_like(self.x[:, :1])
        names = ("text", "glyphs")
        self.sides = [{name: condition[prefix + name] for name in names} for prefix in ("", "negative_")]
        self.fixed = (zeros, mask)

    def ask(self, side, t):
        seen = torch.cat([self.x, *self.fixed], 1)
        return self.model.pipe.transformer(seen, torch.full((BATCH,), t), words=side)

    def guided(self, t):
        positive, negative = (self.ask(side, t) for side in self.sides)
        return negative + 6.0 * (positive - negative)

    def iteration(self):
        for _ in range(GROUP // BATCH):
            with torch.no_grad():
                for i in range(STEPS):
                    self.guided(1000.0 - 100 * i)
                self.model.pipe.vae.decode(self.x / self.model.pipe.vae.config.scaling_factor)
        with torch.no_grad():
            for _ in range((GROUP // BATCH) * (STEPS - 1)):
                self.guided(500.0)
        self.optimizer.zero_grad()
        for _ in range((GROUP // BATCH) * (STEPS - 1)):
            self.guided(500.0).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.optimizer.step()


def clocks():
    """Wall and processor time: the second one does not see what else the machine does."""
    return torch.tensor([time.perf_counter(), time.process_time()], dtype=torch.float64)


class Timer(Callback):
    def __init__(self, bare):
        self.bare, self.ours, self.theirs, self.mark = bare, [], [], None

    def on_iteration(self, loop, metrics):
        now = clocks()
        if self.mark is not None:
            self.ours.append(now - self.mark)
        self.bare.iteration()
        self.mark = clocks()
        self.theirs.append(self.mark - now)


def measure(rounds):
    """(wall, processor) seconds of each iteration, ours and bare, taken in turn; shape (rounds, 2)."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(folder)
        timer = Timer(Bare(trainer))
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
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    ours, theirs = measure(rounds)
    for i, name in enumerate(("wall", "processor")):
        ratios = sorted((ours[:, i] / theirs[:, i]).tolist())
        low, high = ratios[len(ratios) // 4], ratios[-len(ratios) // 4]
        print(
            f"{name} time an iteration: {ours[:, i].median():.3f} s, bare loop {theirs[:, i].median():.3f} s, ratio "
            f"{ratios[len(ratios) // 2]:.3f} (median of {len(ratios)}, quartiles {low:.2f}, {high:.2f})"
        )


if __name__ == "__main__":
    main()
