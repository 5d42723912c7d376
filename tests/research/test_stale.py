"""Rollouts of some iterations ago: which policy made them, and what is learned from them."""

import pytest
import torch
from rich.console import Console

from research.budgeted_run import REFERENCE
from research.compare import candidates, setting
from research.stale import StaleTrainer
from sage_grpo.config import load_recipe
from sage_grpo.core.callback import Callback
from sage_grpo.core.loop import Loop
from sage_grpo.training.trainer import Trainer

SMALL = ["policy.prompts_per_iteration=2", "run.trackers=[]", "run.sample_every=0", "gauge.every=0"]


class Weights(Callback):
    """After each iteration, and how often the policy was updated until then."""

    def __init__(self):
        self.seen, self.updates, self.ratios = [], [], []

    def on_update(self, loop, result):
        self.ratios.append(result.mean("log_ratio_sq"))

    def on_iteration(self, loop, metrics):
        self.seen.append(torch.cat([p.detach().flatten() for p in loop.model.module.parameters()]))
        self.updates.append(loop.updates)


def train(out, name, trainer_type, iterations, staleness=0):
    small = [*SMALL, *(["policy.batch_size=8"] if name == "grpo" else [])]
    overrides = [*setting(name), *candidates(name)[2], *small, f"run.out={out}", f"run.iterations={iterations}"]
    trainer = trainer_type(config=load_recipe(REFERENCE, overrides), console=Console(quiet=True))
    if staleness:
        trainer.loop.staleness = staleness
    weights = Weights()
    trainer.callbacks.append(weights)
    trainer.train()
    return weights


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo", "nft", "awm"])
def test_the_first_lesson_is_the_same_only_later(tmp_path, name):
    """Until then the policy is as it began: what it then learns is what it would have learned at once."""
    fresh = train(tmp_path / "fresh", name, Trainer, 1)
    stale = train(tmp_path / "stale", name, StaleTrainer, 4, staleness=2)
    assert stale.updates == [0, 0, 1, 2]
    assert torch.equal(stale.seen[0], stale.seen[1])
    torch.testing.assert_close(stale.seen[2], fresh.seen[0], rtol=0, atol=2e-6)
    # the second lesson is still of the policy as it began, and that is no longer the policy that learns
    assert stale.ratios[0] == pytest.approx(0, abs=1e-12)
    assert stale.ratios[1] > 1e-14


def test_a_trainer_makes_the_ordinary_loop():
    assert Trainer.loop_type is Loop
