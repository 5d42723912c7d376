"""A run of the laboratory, trained for a moment."""

import pytest
from rich.console import Console

from sage_grpo.config import load_recipe
from sage_grpo.training.trainer import Trainer


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """Two iterations at a learning rate that changes its videos, with both checkpoints."""
    folder = tmp_path_factory.mktemp("runs") / "trained"
    small = [
        "policy.prompts_per_iteration=1",
        "policy.num_generations=4",
        "policy.batch_size=4",
        "optimizer.lr=1e-3",
        "sampling.steps=4",
        "run.iterations=2",
        "run.save_every=1",
        "run.sample_every=0",
        "run.trackers=[]",
        "gauge.every=0",
    ]
    Trainer(config=load_recipe("lab-paper", [*small, f"run.out={folder}"]), console=Console(quiet=True)).train()
    return folder
