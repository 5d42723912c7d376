"""Pre-train a small generator on its world by flow matching: minutes on two cores, reproducible from its seed."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch.nn import functional as F

from sage_grpo.core.protocols import Prompt
from sage_grpo.lab.digits import world as text
from sage_grpo.lab.digits.model import TextModel
from sage_grpo.lab.shapes import world as shapes
from sage_grpo.lab.shapes.model import ShapesModel

EMA = 0.998


@dataclass(frozen=True)
class World:
    """A model to be trained from nothing, clips to train it on, and how."""

    make: Callable[[], ShapesModel]
    random_scene: Callable[[int, torch.Generator], Any]
    render: Callable[[Any], torch.Tensor]
    steps: int
    noise: float  # centre of the logit of σ; above 0 high noise comes more often, where layout and prompt are decided
    floor: float  # errors are divided by σ², or by this where it is larger


WORLDS = {
    "shapes": World(ShapesModel, shapes.random_scene, shapes.render, 2800, noise=0.5, floor=0.05),
    # with the shapes' floor fine strokes at low noise drown out which digit is where: 3,000 steps read none right
    "text": World(TextModel, text.random_scene, text.render, 1800, noise=1.0, floor=0.5),
}


def pretrain(
    out: Path,
    *,
    world: str = "shapes",
    steps: int | None = None,
    batch: int = 32,
    seed: int = 0,
    lr: float = 2e-3,
    show: bool = True,
) -> float:
    """Write a checkpoint folder to `out`; returns the last smoothed loss."""
    chosen = WORLDS[world]
    steps = steps or chosen.steps
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = chosen.make()
    average = torch.optim.swa_utils.AveragedModel(
        model.module,
        multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(EMA),  # type: ignore[no-untyped-call]
    )
    optimizer = torch.optim.AdamW(model.module.parameters(), lr=lr, betas=(0.9, 0.99), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps, pct_start=0.05)
    smooth, started = 0.0, time.perf_counter()
    columns = (
        TextColumn("pre-training"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TextColumn("loss {task.fields[loss]:.4f}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, disable=not show) as progress:
        task = progress.add_task("", total=steps, loss=0.0)
        for step in range(steps):
            scene = chosen.random_scene(batch, generator)
            x0 = chosen.render(scene)
            noise = torch.randn(x0.shape, generator=generator)
            sigma = torch.sigmoid(chosen.noise + 1.2 * torch.randn(batch, generator=generator)).clamp(0.02, 0.999)
            s = sigma.view(-1, 1, 1, 1, 1)
            condition = model.encode([Prompt(text) for text in scene.prompts])
            clean = model.clean((1 - s) * x0 + s * noise, sigma, condition)
            error = F.mse_loss(clean, x0, reduction="none").flatten(1).mean(1)
            loss = (error / sigma.square().clamp(min=chosen.floor)).mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.module.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            average.update_parameters(model.module)
            smooth = loss.item() if step == 0 else 0.99 * smooth + 0.01 * loss.item()
            progress.update(task, advance=1, loss=smooth)
    model.module.load_state_dict(average.module.state_dict())
    facts = {"steps": steps, "batch": batch, "seed": seed, "lr": lr, "loss": round(smooth, 5)}
    command = f"sage-grpo lab pretrain --world {world} --out {out.name} --steps {steps} --batch {batch} --seed {seed}"
    model.save_pretrained(str(out), made_by=command, pretraining=facts)
    if show:
        print(f"wrote {out} after {time.perf_counter() - started:.0f} s, loss {smooth:.4f}")
    return smooth
