"""`sage-grpo rewards`: which scorers there are, what they say of videos, how they are gamed, and getting them ready."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sage_grpo.cli.arguments import writable_file, writable_folder
from sage_grpo.cli.errors import user_errors
from sage_grpo.cli.rewards_audit import audit
from sage_grpo.cli.rewards_list import list_rewards
from sage_grpo.cli.rewards_score import MEGAPIXELS, score

app = typer.Typer(help="List, try, audit and prepare scorers.", no_args_is_help=True, rich_markup_mode="markdown")


class Dtype(StrEnum):
    float32 = "float32"
    bfloat16 = "bfloat16"


@app.callback()
def _rewards() -> None:
    """Scorers outside a run: list them, score a folder of videos, see how they are gamed, get others ready."""


app.command("list")(list_rewards)
app.command()(score)
app.command()(audit)


@app.command()
def convert(
    source: Annotated[
        Path, typer.Argument(help="VideoAlign's folder, with model_config.json; or ImageBind's imagebind_huge.pth.")
    ],
    target: Annotated[Path, typer.Argument(help="Folder to write; it must not exist yet.", callback=writable_folder)],
    rubric: Annotated[
        Path | None, typer.Option(help="VideoAlign's prompt_template.py, if it is not near the checkpoint.")
    ] = None,
    base: Annotated[
        Path | None, typer.Option(help="Folder of Qwen2-VL-2B-Instruct, for checkpoints that hold adapters only.")
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="Of the written weights; bfloat16 halves the folder.")] = Dtype.float32,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Make the released checkpoint of VideoAlign or ImageBind into a folder that a recipe can name.

    Adapters are merged, names brought up to date and pickles left behind: what could run code is refused. Where to get
    them stands in docs/rewards.md and docs/rewards-scorers.md.

    Example: `sage-grpo rewards convert VideoAlign/checkpoints/VideoReward checkpoints/videoalign`
    """
    from rich.console import Console

    console = Console(stderr=as_json)
    name = "imagebind" if source.is_file() or source.suffix == ".pth" else "videoalign"
    with user_errors(), console.status("loading the libraries") as status:
        from sage_grpo.registry import resolve_reward

        resolve_reward(name)  # says what to install
        if name == "imagebind":
            from sage_grpo.rewards.errors import RewardError
            from sage_grpo.rewards.imagebind.convert import convert as convert_imagebind

            if rubric or base or dtype is not Dtype.float32:
                raise RewardError(
                    "--rubric, --base and --dtype are for VideoAlign; ImageBind's file needs none of them"
                )
            written = convert_imagebind(source, target, emit=status.update)
        else:
            from sage_grpo.rewards.videoalign.convert import convert as convert_videoalign

            written = convert_videoalign(
                source, target, base=base, rubric=rubric, dtype=dtype.value, emit=status.update
            )
    if as_json:
        import json

        print(json.dumps(written | {"target": str(target)}))
        return
    outputs = f" (output_dim {written['output_dim']})" if "output_dim" in written else ""
    console.print(
        f"Wrote {target}{outputs}. In a recipe:\n"
        f"  rewards:\n    - type: {name}\n      options: {{path: {target}, device: cuda}}",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )


@app.command()
def reference(
    source: Annotated[Path, typer.Argument(help="Folder of real pictures and videos; folders in it count too.")],
    target: Annotated[Path, typer.Argument(help="File to write, e.g. real.safetensors.", callback=writable_file)],
    frames: Annotated[int, typer.Option(min=1, help="Frames of each video, spread from the first to the last.")] = 4,
    device: Annotated[str, typer.Option(help="Where to compute: auto, cpu or cuda.")] = "auto",
    megapixels: Annotated[float, MEGAPIXELS] = 200.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Features of real pictures and videos, to which the monitor `kid` compares the sample videos.

    Example: `sage-grpo rewards reference data/real real.safetensors`
    """
    from rich.console import Console

    from sage_grpo.progress import progress_of

    console = Console(stderr=as_json)
    with user_errors():
        from sage_grpo.registry import resolve_reward

        resolve_reward("kid")  # says what to install
        from sage_grpo.distributed.device import choose_device
        from sage_grpo.evaluation.clips import FILMS, PICTURES, find_videos
        from sage_grpo.evaluation.reference import make_reference

        files = find_videos([source], [(*FILMS, *PICTURES)])
        with progress_of("looking at real pictures", console) as emit:
            written = make_reference(
                files, target, device=choose_device(device), frames=frames, megapixels=megapixels, emit=emit
            )
    if as_json:
        import json

        print(json.dumps(written | {"target": str(target)}))
        return
    for line in written["unread"]:
        console.print(f"left out {line}", highlight=False, soft_wrap=True, markup=False)
    console.print(
        f"Wrote {target}: {written['frames']} frames of {written['files']} files. In a recipe:\n"
        f"  monitors:\n    - type: kid\n      options: {{reference: {target}}}",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )
