"""`sage-grpo train`: run a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sage_grpo.cli.arguments import Overrides, Recipe
from sage_grpo.cli.errors import user_errors

if TYPE_CHECKING:
    from sage_grpo.training.trainer import Trainer


def train(
    recipe: Recipe,
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the end summary as JSON.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Validate the recipe, print it in full, note what has no effect, and stop.")
    ] = False,
) -> None:
    """Post-train a model as a recipe says, from where an earlier run of the same folder stopped.

    Ctrl-C finishes the iteration, saves and exits; the same command continues from there.

    Several GPUs: `torchrun --nproc-per-node=8 -m sage_grpo train hunyuan15-8gpu-lora`

    Example: `sage-grpo train lab run.out=runs/first policy.clip=1e-5`
    """
    from sage_grpo.config import dump_recipe, load_recipe

    with user_errors():
        config = load_recipe(recipe, overrides or [])
    if check:
        from rich.console import Console

        from sage_grpo.training.build import check_names
        from sage_grpo.training.checks import check_noise_levels
        from sage_grpo.training.inert import inert_terms

        with user_errors():
            check_names(config)
            check_noise_levels(config)
            notes = inert_terms(config)
        print(dump_recipe(config), end="", flush=True)
        for note in notes:  # to stderr: a program may read the recipe from stdout
            Console(stderr=True).print(f"[yellow]note:[/] {note}", highlight=False)
        return
    import json
    from dataclasses import asdict

    from rich.console import Console

    from sage_grpo.preflight.plan.background import background_plan
    from sage_grpo.training.trainer import Trainer

    with user_errors():
        trainer = Trainer(config=config, console=Console(stderr=as_json))
        with background_plan(config, known_gpu(trainer)) as trainer.work:
            result = trainer.train()
    if as_json and trainer.main:
        print(json.dumps(asdict(result), default=str))
    if trainer.processes:
        from sage_grpo.distributed.processes import leave

        leave()


def known_gpu(trainer: Trainer) -> str | None:
    """The plan's name of the first process's GPU; none on the others, on the host, and of GPUs it does not know."""
    from sage_grpo.preflight.first_run.machine import device_name
    from sage_grpo.preflight.plan.hardware import guess_gpu

    device = next(trainer.model.module.parameters()).device
    return guess_gpu(device_name(device)) if trainer.main else None
