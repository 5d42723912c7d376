"""`sage-grpo lab`: see the method work on this computer."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sage_grpo.cli.arguments import whole_seed, writable_folder
from sage_grpo.cli.errors import user_errors


def one_thread() -> None:
    """The laboratory's matrices are small: a second thread gains little, and waits where cores are busy."""
    import torch

    torch.set_num_threads(1)


app = typer.Typer(invoke_without_command=True, rich_markup_mode="markdown")


@app.callback()
def lab(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder for the run and its report.")] = Path("runs/lab"),
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Fewer for a quick look; default: the recipe's.")
    ] = None,
    samples: Annotated[int, typer.Option(min=48, help="Fresh videos to compare before and after on.")] = 240,
    seed: Annotated[int, typer.Option(help="Another seed, another run.", callback=whole_seed)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Train a small real video generator in minutes, without a GPU, and see what improved.

    Writes before_after.html with videos of both, and before_after.webp to show around. If interrupted, the same
    command continues.

    Example: `sage-grpo lab --out runs/lab`
    """
    if context.invoked_subcommand is not None:
        return
    writable_folder(out)  # not as the option's callback: a subcommand has a folder of its own
    from rich.console import Console

    from sage_grpo.lab.shapes.run import run_lab

    console = Console(stderr=as_json)
    one_thread()
    with user_errors():
        result = run_lab(out, iterations=iterations, samples=samples, seed=seed, console=console)
    if as_json:
        print(json.dumps(result.as_dict()))
        return
    untrained = ", ".join(f"{found.followed:.0%} with guidance {scale}" for scale, found in result.base.items())
    console.print(
        f"\n[bold]Prompts followed {result.followed}[/]   "
        f"(95 %: {result.followed.intervals}; {result.samples} fresh videos)\n"
        f"  never seen in training  {result.never_seen}   (95 %: {result.never_seen.intervals})\n"
        f"  became right, wrong     {result.gained}, {result.lost}   (McNemar p = {result.mcnemar_p:.0e})\n"
        f"  flicker or halt         {result.flawed}   (95 %: {result.flawed.intervals})\n"
        f"  distance to real clips  {result.distance_before:.3f} → {result.distance_after:.3f}\n"
        f"  diversity               {result.diversity_before:.3f} → {result.diversity_after:.3f}\n"
        f"  reward                  {result.reward_delta:+.2f} ± {result.reward_se:.2f}\n"
        f"All with guidance {result.guidance:g}. The untrained base follows {untrained}.\n"
        f"{result.seconds:.0f} s in all. Open [bold]{result.report}[/]",
        highlight=False,
    )


@app.command()
def text(
    out: Annotated[Path, typer.Option(help="Folder for the run and its report.", callback=writable_folder)] = Path(
        "runs/text"
    ),
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Fewer for a quick look; default: the recipe's.")
    ] = None,
    samples: Annotated[int, typer.Option(min=2, help="Fresh videos to compare before and after on.")] = 400,
    seed: Annotated[int, typer.Option(help="Another seed, another run.", callback=whole_seed)] = 0,
    base: Annotated[Path | None, typer.Option(help="Another base model, from `lab pretrain --world text`.")] = None,
    control: Annotated[bool, typer.Option("--control", help="Draw lots for rewards, to compare with.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Teach a small video generator to write numbers, with real OCR as its reward, without a GPU.

    Compares before and after on numbers that no training saw, and writes before_after.html with videos of both.
    If interrupted, the same command continues. docs/text-rendering.md names its CPU minutes and what to expect.

    Example: `sage-grpo lab text --out runs/text`
    """
    from rich.console import Console

    console = Console(stderr=as_json)
    with user_errors():
        from sage_grpo.registry import resolve_reward

        resolve_reward("ocr")  # fails first, with the install line, if the library is missing
        from sage_grpo.lab.digits.run import run_text

        one_thread()
        result = run_text(
            out, iterations=iterations, samples=samples, seed=seed, console=console, base=base, control=control
        )
    if as_json:
        print(json.dumps(result.as_dict()))
        return
    console.print(
        f"\n[bold]Numbers read exactly {result.exact}[/] "
        f"of {result.samples} fresh videos (95 %: {result.exact.intervals}; McNemar p = {result.mcnemar_p:.1e})\n"
        f"  characters right        {result.characters_before:.1%} → {result.characters_after:.1%}   (the reward)\n"
        f"  exactly, last frame     {result.last_frame}   (held out)\n"
        f"  exactly, second reader  {result.second_reader}   (held out)\n"
        f"  distance to the truth   {result.distance_before:.3f} → {result.distance_after:.3f}   (held out)\n"
        f"  colour right            {result.colour_before:.1%} → {result.colour_after:.1%}   (held out)\n"
        f"  tint off the colour     {result.tint_before:.3f} → {result.tint_after:.3f}   (held out)\n"
        f"  diversity               {result.diversity_before:.3f} → {result.diversity_after:.3f}   (held out)\n"
        f"{result.seconds:.0f} s in all, {result.cpu_seconds / 60:.1f} CPU minutes. Open [bold]{result.report}[/]",
        highlight=False,
    )


@app.command()
def sound(
    out: Annotated[Path, typer.Option(help="Folder for the run and its report.", callback=writable_folder)] = Path(
        "runs/sound"
    ),
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Fewer for a quick look; default: the recipe's.")
    ] = None,
    samples: Annotated[int, typer.Option(min=48, help="Fresh videos to compare before and after on.")] = 240,
    seed: Annotated[int, typer.Option(help="Another seed, another run.", callback=whole_seed)] = 0,
    base: Annotated[Path | None, typer.Option(help="Another base model, from `lab pretrain --world tones`.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Teach a small generator of video and sound to let both fit, with a reward that listens, without a GPU.

    Compares before and after on fresh videos, and writes before_after.html with videos of both, with their sound. If
    interrupted, the same command continues.

    Example: `sage-grpo lab sound --out runs/sound`
    """
    from rich.console import Console

    from sage_grpo.lab.tones.evaluate import NEAR
    from sage_grpo.lab.tones.run import run_sound

    console = Console(stderr=as_json)
    one_thread()
    with user_errors():
        result = run_sound(out, iterations=iterations, samples=samples, seed=seed, console=console, base=base)
    if as_json:
        print(json.dumps(result.as_dict()))
        return
    low, high = result.distance_delta_interval
    console.print(
        f"\n[bold]Sound fits the picture {result.fits}[/]   "
        f"(within {NEAR} octaves; 95 %: {result.fits.intervals}; {result.samples} fresh videos)\n"
        f"  prompts never trained on  {result.never_seen}   (95 %: {result.never_seen.intervals})\n"
        f"  octaves off               {result.gap_before:.3f} → {result.gap_after:.3f}"
        f"   ({result.gap_standard_errors:.1f} standard errors)\n"
        f"  distance to real clips    {result.distance_before:.3f} → {result.distance_after:.3f}"
        f"   (change, 95 %: {low:+.3f} to {high:+.3f})\n"
        f"  prompts followed          {result.followed}\n"
        f"  diversity                 {result.diversity_before:.3f} → {result.diversity_after:.3f}\n"
        f"{result.seconds:.0f} s, {result.cpu_seconds / 60:.1f} CPU minutes. Open [bold]{result.report}[/]",
        highlight=False,
    )


def moved(context: typer.Context) -> None:
    """Say where a study is that was a subcommand of `lab` in earlier versions."""
    with user_errors():
        from sage_grpo.config import ConfigError

        raise ConfigError(f"lab {context.info_name} is now python -m research {context.info_name}, in a clone")


for study in ("compare", "efficiency", "feedback", "guidance", "reproduce", "settings"):
    app.command(study, hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(moved)


class World(StrEnum):
    shapes = "shapes"
    text = "text"
    tones = "tones"


@app.command()
def pretrain(
    out: Annotated[Path, typer.Option(help="Folder for the checkpoint.", callback=writable_folder)],
    world: Annotated[World, typer.Option(help="What its clips show.")] = World.shapes,
    steps: Annotated[int | None, typer.Option(min=1, help="Default: those of the checkpoint that ships.")] = None,
    batch: Annotated[int, typer.Option(min=1)] = 64,
    seed: Annotated[int, typer.Option(callback=whole_seed)] = 0,
    width: Annotated[
        int | None,
        typer.Option(min=8, help="Of the generator, on the shipped autoencoder; default: the shipped one's."),
    ] = None,
) -> None:
    """Make a base model that ships with the package, from nothing; about half an hour on one core.

    Example: `sage-grpo lab pretrain --out runs/shapes_base`
    """
    from sage_grpo.lab.pretrain import pretrain as run

    one_thread()
    with user_errors():
        run(out, world=world.value, steps=steps, batch=batch, seed=seed, width=width)
