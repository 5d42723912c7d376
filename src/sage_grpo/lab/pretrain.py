"""Pre-training of the laboratory's models: an autoencoder of the world's clips, then flow matching on its latents.

It takes minutes on one core, and is reproducible from its seed.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.nn import functional as F

from sage_grpo.core.protocols import Prompt
from sage_grpo.lab.autoencoder import Autoencoder
from sage_grpo.lab.digits import world as text
from sage_grpo.lab.digits.model import TextModel
from sage_grpo.lab.generator import LabModel
from sage_grpo.lab.shapes import world as shapes
from sage_grpo.lab.shapes.model import ShapesModel
from sage_grpo.lab.tones import world as tones
from sage_grpo.lab.tones.model import TonesModel

EMA = 0.999
LR, WIDTH = 2e-3, 96  # learning rate of generators up to the width that ships; a wider one gets less
CLIPS, STOCK = 32, 40_000  # rendered at a time, and in all that the generator learns from
JITTER = 0.1  # noise on latents, so that the decoder forgives a generator its slips
SMALL = 1e-4  # price of large latents
SPREAD = 1.2  # of the logit of σ

Schedule = torch.optim.lr_scheduler.OneCycleLR


@dataclass(frozen=True)
class World:
    """The pre-training of one world: its model, the clips and captions to learn from, and how long to train."""

    make: Callable[[], LabModel]
    random_scene: Callable[[int, torch.Generator], Any]
    render: Callable[[Any], Tensor]
    captions: Callable[[Any, torch.Generator], list[str]]  # some wrong, some empty
    autoencoder_steps: int
    steps: int
    noise: float  # centre of the logit of σ; above 0 high noise comes more often, where layout and prompt are decided
    floor: float  # errors are divided by σ², or by this where it is larger
    footage: Callable[[Tensor, torch.Generator], Tensor] = lambda clips, generator: clips  # clips with flaws
    more: Callable[[Any, Tensor, Any, torch.Generator], Tensor] = lambda model, pictures, scene, generator: pictures
    """Function of the model, latents of clips, their scene and a random generator. It returns the latents to learn.

    These can have more than the pictures, such as the sound. By default they are the latents of the clips.
    """


def dubbed(model: TonesModel, pictures: Tensor, scene: shapes.Scene, generator: torch.Generator) -> Tensor:
    return model.with_sound(pictures, tones.misdubbed(scene, generator))


WORLDS = {
    "shapes": World(
        ShapesModel,
        shapes.random_scene,
        shapes.render,
        shapes.misleading_captions,
        5000,
        9000,
        0.5,
        0.05,
        footage=shapes.footage,
    ),
    "text": World(TextModel, text.random_scene, text.render, text.captions, 3000, 6000, 1.0, 0.5),
    # begins as the generator of shapes of the first base, autoencoder included
    "tones": World(
        TonesModel.of_shapes, shapes.random_scene, shapes.render, shapes.captions, 0, 4000, 0.5, 0.05, more=dubbed
    ),
}


def pretrain(
    out: Path,
    *,
    world: str = "shapes",
    steps: int | None = None,
    batch: int = 64,
    seed: int = 0,
    lr: float | None = None,
    width: int | None = None,
    show: bool = True,
) -> float:
    """Pre-train a world's model, write a checkpoint folder to `out`, and return the generator's smoothed final loss.

    `steps` are those of the generator; None for the world's own number. The steps of the autoencoder and the number of
    clips change in proportion. With a `width`, the generator has another width than the one that ships, and the
    autoencoder is the one that ships. `lr` is 0.002 by default, and less for a wider generator, by the square root.
    """
    lr = lr or LR * min(1.0, (WIDTH / (width or WIDTH)) ** 0.5)
    chosen, started = WORLDS[world], time.perf_counter()
    steps = steps or chosen.steps
    share = steps / chosen.steps
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = chosen.make()
    if width:
        model.autoencoder = type(model).from_pretrained().autoencoder
        model.module = model.new_module(model.autoencoder.latent_shape, width)
        model.pictures = model.shipped  # not saved again
    elif chosen.autoencoder_steps:
        asked = max(2, round(share * chosen.autoencoder_steps))
        train_autoencoder(model.autoencoder, chosen, asked, generator, lr, show)
    pictures, scene = encode_stock(model.autoencoder, chosen, max(batch, round(share * STOCK)), generator)
    latents = chosen.more(model, pictures, scene, generator)
    loss = train_generator(model, chosen, latents, scene, steps, batch, generator, lr, show)
    facts = {"steps": steps, "batch": batch, "seed": seed, "lr": round(lr, 6), "loss": round(loss, 5)}
    sized = f" --width {width}" if width else ""
    command = (
        f"sage-grpo lab pretrain --world {world}{sized} --out {out.name} --steps {steps} --batch {batch} --seed {seed}"
    )
    model.save_pretrained(str(out), made_by=command, pretraining=facts)
    if show:
        print(f"wrote {out} after {time.perf_counter() - started:.0f} s, loss {loss:.4f}")
    return loss


def train_autoencoder(
    network: Autoencoder, world: World, steps: int, generator: torch.Generator, lr: float, show: bool
) -> None:
    """Train an autoencoder to reconstruct random clips of a world from latents with a little noise.

    Afterwards its latents are standardized, and its weights are rounded to half precision, as they are saved.
    """
    network.requires_grad_(True).train()
    optimizer, schedule = optimizer_of(network, lr, steps)
    with bar("autoencoder", steps, show) as emit:
        for _ in range(steps):
            clips = world.footage(world.render(world.random_scene(CLIPS, generator)), generator)
            latents = network.encode(clips)
            logits = network.logits(latents + JITTER * torch.randn(latents.shape, generator=generator))
            unlike = F.binary_cross_entropy_with_logits(logits, (clips + 1) / 2)
            loss = unlike + SMALL * latents.square().mean()
            descend(loss, network, optimizer, schedule)
            emit(loss.item())
    network.requires_grad_(False).eval()
    network.standardize(world.footage(world.render(world.random_scene(16 * CLIPS, generator)), generator))
    for weights in network.state_dict().values():
        weights.copy_(weights.half())  # as they are written: the generator learns the latents that it will be given


@torch.no_grad()
def encode_stock(network: Autoencoder, world: World, clips: int, generator: torch.Generator) -> tuple[Tensor, Any]:
    """Return the latents (clips, …) of `clips` random clips, and the scene that has their content, one row per clip."""
    scene = world.random_scene(clips, generator)
    parts = torch.split(torch.arange(clips), CLIPS)
    return torch.cat([network.encode(world.footage(world.render(scene.at(rows)), generator)) for rows in parts]), scene


def train_generator(
    model: LabModel,
    world: World,
    latents: Tensor,
    scene: Any,
    steps: int,
    batch: int,
    generator: torch.Generator,
    lr: float,
    show: bool,
) -> float:
    """Train the generator by flow matching on latents and captions of a scene, and return the smoothed final loss.

    It is the moving average of the loss over steps. At the end, the weights are replaced by their moving average, too.
    """
    average = torch.optim.swa_utils.AveragedModel(
        model.module,
        multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(EMA),  # type: ignore[no-untyped-call]
    )
    optimizer, schedule = optimizer_of(model.module, lr, steps)
    with bar("generator", steps, show) as emit:
        for _ in range(steps):
            rows = torch.randint(len(latents), (batch,), generator=generator)
            x0 = latents[rows]
            noise = torch.randn(x0.shape, generator=generator)
            sigma = torch.sigmoid(world.noise + SPREAD * torch.randn(batch, generator=generator)).clamp(0.02, 0.999)
            s = sigma.view(-1, *(1 for _ in x0.shape[1:]))
            condition = model.encode([Prompt(text) for text in world.captions(scene.at(rows), generator)])
            clean = model.clean((1 - s) * x0 + s * noise, sigma, condition)
            error = F.mse_loss(clean, x0, reduction="none").flatten(1).mean(1)
            loss = (error / sigma.square().clamp(min=world.floor)).mean()
            descend(loss, model.module, optimizer, schedule)
            average.update_parameters(model.module)
            smooth = emit(loss.item())
    model.module.load_state_dict(average.module.state_dict())
    return smooth


def optimizer_of(network: nn.Module, lr: float, steps: int) -> tuple[torch.optim.AdamW, Schedule]:
    optimizer = torch.optim.AdamW(network.parameters(), lr=lr, betas=(0.9, 0.99), weight_decay=0.01)
    return optimizer, Schedule(optimizer, lr, total_steps=steps, pct_start=0.05)


def descend(loss: Tensor, network: nn.Module, optimizer: torch.optim.AdamW, schedule: Schedule) -> None:
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.step()
    schedule.step()


@contextmanager
def bar(name: str, steps: int, show: bool) -> Iterator[Callable[[float], float]]:
    """Show a progress bar, unless `show` is False. Yield a function to call with the loss of each step.

    The function returns the moving average of the losses so far.
    """
    columns = (
        TextColumn(f"{name:<11}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TextColumn("loss {task.fields[loss]:.4f}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, disable=not show) as progress:
        task, smooth = progress.add_task("", total=steps, loss=0.0), None

        def emit(loss: float) -> float:
            nonlocal smooth
            smooth = loss if smooth is None else 0.99 * smooth + 0.01 * loss
            progress.update(task, advance=1, loss=smooth)
            return smooth

        yield emit
