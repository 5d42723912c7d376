"""A run of a real model class that is stopped and goes on ends as one that was never stopped, to the bit."""

import pytest

pytest.importorskip("diffusers")

import torch

from sage_grpo.models import contract
from sage_grpo.models.wan import Wan22
from sage_grpo.training.trainer import Trainer

pytestmark = pytest.mark.slow


def brightness(videos, prompts):
    return [video.float().mean().item() for video in videos]


EARLY = {"steps": 8, "window": {"size": 1, "range": [0, 0.3]}}  # the first expert's steps, of two experts


def run(folder, checkpoint, iterations, sampling=None, **tuning):
    frames, height, width = Wan22.tiny_size
    model = {
        "type": "wan2.2",
        "path": checkpoint,
        "frames": frames,
        "height": height,
        "width": width,
        "guidance_scale": 3.0,
        "options": dict(Wan22.tiny_options),
    }
    trainer = Trainer(
        rewards=[brightness],
        config={
            "model": model,
            "tuning": {"rank": 2, **tuning},
            "sampling": sampling or {"steps": 4},
            "policy": {"prompts_per_iteration": 1, "num_generations": 2, "batch_size": 2, "num_iterations": 2},
            "kl": {"ref_model_sync_steps": 3, "warmup": 3, "high": 0.1},
            "optimizer": {"lr": 1e-2, "ema": 0.8, "type": "muon"},
            "run": {"out": str(folder), "iterations": iterations, "sample_every": 0, "trackers": [], "save_every": 1},
        },
        prompts=["a cat", "a dog", "a bird"],
    )
    trainer.train()
    return trainer


@pytest.mark.parametrize(
    "tuning",
    [
        {"mode": "lora", "precision": "bfloat16"},
        {"mode": "lora", "min_sigma": 0.8, "sampling": EARLY},
        {"mode": "full", "gradient_checkpointing": True},
    ],
)
def test_stopped_run_ends_as_an_unbroken_one(tmp_path, tuning):
    checkpoint = contract.make_checkpoint(Wan22, tmp_path / "base")
    whole = run(tmp_path / "whole", checkpoint, 4, **tuning)
    run(tmp_path / "parts", checkpoint, 2, **tuning)
    parts = run(tmp_path / "parts", checkpoint, 4, **tuning)
    one, other = (dict(t.model.module.named_parameters()) for t in (whole, parts))
    assert one.keys() == other.keys()  # the anchor's and the average's adapters are back, too
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert whole.loop.bank.state_dict().keys() == parts.loop.bank.state_dict().keys()
    rows = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("whole", "parts")]
    assert len(rows[0]) == len(rows[1]) == 4
