"""A plan that a separate process makes during a run, for the MFU in the run's log."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from sage_grpo.config import RecipeConfig, dump_recipe
from sage_grpo.training.throughput import Work

LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def work_of(text: str) -> Work | None:
    """Return the work of an iteration from the JSON that `sage-grpo plan` prints; None if the plan failed.

    The work is the floating-point operations of an iteration and the peak of a GPU.
    """
    try:
        figures = json.loads(text)
        return Work(figures["useful_pflop_per_iteration"] * 1e15, figures["peak_tflops_per_gpu"] * 1e12)
    except (ValueError, KeyError, TypeError):
        return None


class BackgroundPlan:
    """A plan that a separate process makes.

    Call this object for the work of an iteration. It returns None until the plan is made, and always if the plan fails;
    the log then has no MFU.
    """

    def __init__(self, config: RecipeConfig, gpu: str, folder: Path) -> None:
        recipe, self.path = folder / "recipe.yaml", folder / "plan.json"
        recipe.write_text(dump_recipe(config))
        command = [sys.executable, "-m", "sage_grpo", "plan", str(recipe), "--gpu", gpu, "--json"]
        own = {name: value for name, value in os.environ.items() if name not in LAUNCHER}
        alone = own | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}  # it takes no GPU and one core
        with self.path.open("wb") as file:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.DEVNULL, env=alone
            )

    def __call__(self) -> Work | None:
        return work_of(self.path.read_text()) if self.process.poll() == 0 else None

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def background_plan(config: RecipeConfig, gpu: str | None) -> Iterator[BackgroundPlan | None]:
    """Plan a recipe in a separate process while the block runs, and yield this plan.

    `gpu` is a name in `plan.hardware.GPUS`. If it is None, the GPU's peak is not known, and None is yielded.
    """
    if gpu is None:
        yield None
        return
    with TemporaryDirectory() as folder:
        plan = BackgroundPlan(config, gpu, Path(folder))
        try:
            yield plan
        finally:
            plan.close()
