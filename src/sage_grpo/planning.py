"""A recipe laid out over its processes without any of them: what each would hold, do and write.

python -m sage_grpo.planning hunyuan15-64gpu --processes 64
"""

import argparse
import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from rich.console import Console
from rich.table import Table

from sage_grpo import build
from sage_grpo.config import ConfigError, RecipeConfig, load_recipe
from sage_grpo.core.loop import Loop
from sage_grpo.core.protocols import Prompt, VideoModel, networks
from sage_grpo.dist.checkpoint import saved_tensors
from sage_grpo.dist.peak import imagine_weights, peak_bytes, without_values
from sage_grpo.dist.plan import Contents, LayoutPlan, Shares, plan_layout, pretend
from sage_grpo.dist.processes import Processes
from sage_grpo.dist.shard import shard
from sage_grpo.models.loading import ModelError
from sage_grpo.models.quiet import quiet_libraries
from sage_grpo.tracking.gauge import INITIAL
from sage_grpo.tuning.optimizers import build_optimizer
from sage_grpo.tuning.parts import TuningError
from sage_grpo.tuning.prepare import make_bank

UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


@dataclass(frozen=True)
class RecipePlan:
    parameters: int  # of the networks, without adapters
    trained: int
    layout: LayoutPlan
    group_size: int
    peak: dict[str, int] = field(default_factory=dict)  # of a training pass, by kind


def contents(model: VideoModel, config: RecipeConfig, processes: Processes) -> Contents:
    """After a first update: the trainer's own optimizer, bank of copies and state."""
    shard(model, processes.weights_mesh, getattr(model, "autocast_dtype", None))
    weights = dict(model.module.named_parameters())
    trained = [weight for weight in weights.values() if weight.requires_grad]
    optimizer, bank = build_optimizer(model.module, config.optimizer), make_bank(model.module)
    for weight in trained:
        weight.grad = torch.empty_like(weight)
    optimizer.step()
    measured = [INITIAL] if config.gauge.every and config.tuning.mode == "full" else []  # for adapters it is the base
    for name in [*build.copies_of(config), *measured]:
        bank.save(name, decay=0.5)  # a first average is a copy, and asks for no value
    nobody: Any = None
    loop = Loop(model, nobody, nobody, config, optimizer, bank=bank, comm=processes)
    saved = saved_tensors({"loop": loop.state_dict()})
    held: dict[str, list[torch.Tensor]] = {
        "trained weights": [*trained],
        "frozen weights": [w for name, w in weights.items() if not w.requires_grad and ".lora_" not in name],
        "copies": [tensor for place, tensor in saved.items() if place.startswith("state/loop/bank/")],
        "gradients": [weight.grad for weight in trained if weight.grad is not None],
        "optimizer": [tensor for place, tensor in saved.items() if place.startswith("state/loop/optimizer/")],
        "buffers": list(model.module.buffers()),
    }
    return Contents(held, saved)


def plan_recipe(config: RecipeConfig, *, peak: bool = False) -> RecipePlan:
    layout, model = config.parallel, build.outline_model(config)
    parameters = sum(w.numel() for name, w in model.module.named_parameters() if ".lora_" not in name)
    trained = sum(w.numel() for w in model.module.parameters() if w.requires_grad)
    sizes = (layout.processes, layout.sequence, layout.replicate)
    plan = plan_layout(lambda processes: contents(model, config, processes), config.rollouts, *sizes)
    return RecipePlan(parameters, trained, plan, config.policy.num_generations, plan_peak(config) if peak else {})


def plan_peak(config: RecipeConfig) -> dict[str, int]:
    """One training pass of one batch on the first process."""
    layout, model = config.parallel, cast(Any, build.outline_model(config))
    if len(networks(model.module)) > 1:
        raise ConfigError("the peak of several networks is not measured yet; plan without it")
    batch = config.policy.batch_size * config.policy.replay_timesteps
    with pretend(layout.processes, layout.sequence, layout.replicate) as processes, without_values():
        imagine_weights(model.module)
        if processes.exchange:
            model.share_sequence(processes.exchange)
        shard(model, processes.weights_mesh, model.autocast_dtype)
        x = torch.zeros(batch, *model.latent_shape(Prompt("")))
        return peak_bytes(model, x, x.new_ones(batch), model.blank_condition(batch))


def in_units(size: int) -> str:
    return next((f"{size / unit:.2f} {name}" for unit, name in UNITS if size >= unit), f"{size} B")


def summary(plan: RecipePlan) -> dict[str, Any]:
    """In bytes; `largest` and `smallest` are those of one rank."""

    def short(shares: Shares) -> dict[str, int]:
        return {"whole": shares.whole, "largest": max(shares.by_rank), "smallest": min(shares.by_rank)}

    layout, kinds = plan.layout, plan.layout.held.values()
    everything = Shares(sum(k.whole for k in kinds), tuple(map(sum, zip(*(k.by_rank for k in kinds), strict=True))))
    groups, replicas = layout.groups(plan.group_size)
    return {
        "parameters": plan.parameters, "trained": plan.trained, "mesh": layout.mesh,
        "held": {kind: short(shares) for kind, shares in (layout.held | {"in all": everything}).items()},
        "checkpoint": short(layout.written) | {"files": layout.files},
        "rollouts_per_replica": len(layout.samples[0]), "groups_per_replica": groups, "replicas_per_group": replicas,
        "peak": plan.peak,
    }  # fmt: skip


def show(plan: RecipePlan, console: Console) -> None:
    told = summary(plan)
    mesh = " × ".join(f"{name} {size}" for name, size in told["mesh"].items())
    table = Table(title=f"{plan.parameters / 1e9:.3f}B parameters, {plan.trained / 1e6:.1f}M trained; {mesh}")
    for column in ("", "whole", "largest rank", "smallest rank"):
        table.add_column(column, justify="right" if column else "left")
    rows = {kind: shares for kind, shares in told["held"].items() if shares["whole"]}
    rows[f"checkpoint, {told['checkpoint'].pop('files')} files"] = told["checkpoint"]
    for name, row in rows.items():
        table.add_row(name, *map(in_units, row.values()))
    for kind, size in plan.peak.items():
        table.add_row(f"peak of a pass: {kind.lower()}", "", in_units(size), "")
    console.print(table)
    console.print(
        f"a replica makes {told['rollouts_per_replica']} rollouts of {told['groups_per_replica']} group(s); "
        f"{told['replicas_per_group']} replica(s) share a group of {plan.group_size}", highlight=False,
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="sage_grpo.planning", description="Lay a recipe out without GPUs.")
    parser.add_argument("recipe", help="YAML file, or the name of a shipped recipe")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--processes", type=int, help="the same as parallel.processes=N")
    parser.add_argument("--peak", action="store_true", help="also count a training pass at full size: some minutes")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_intermixed_args(arguments)
    overrides = [*options.overrides, *([f"parallel.processes={options.processes}"] if options.processes else [])]
    if importlib.util.find_spec("diffusers"):
        quiet_libraries()
    try:
        plan = plan_recipe(load_recipe(options.recipe, overrides), peak=options.peak)
    except (ConfigError, ModelError, TuningError) as error:
        parser.error(str(error))
    if options.json:
        print(json.dumps(summary(plan)))
    else:
        show(plan, Console())


if __name__ == "__main__":
    main()
