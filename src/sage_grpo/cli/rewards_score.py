"""`sage-grpo rewards score`: scores of a folder of videos."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sage_grpo.cli.arguments import finite, writable_folder
from sage_grpo.cli.errors import user_errors

if TYPE_CHECKING:
    from rich.console import Console

    from sage_grpo.evaluation.folder import FolderScores
    from sage_grpo.evaluation.scorers import Scorers

REWARD = typer.Option("--reward", help="A scorer by name, with its defaults; several times for several.")
REWARDS = typer.Option("--rewards", help="YAML with `rewards:` as in a recipe, or a recipe: for options and weights.")
PROMPTS = typer.Option(
    "--prompts",
    help="txt, jsonl, csv or parquet; rows find their video by its name in a column `file` (in txt: before a tab), "
    "or by a file named after the prompt. Without it: the .txt next to each video.",
)
MEGAPIXELS = typer.Option(
    "--megapixels",
    min=0.001,
    callback=finite,
    help="Frames × width × height, in millions, above which a video is not decoded.",
)
REASONS = 6  # shown; all are in the file


def score(
    folder: Annotated[Path, typer.Argument(help="Folder of videos (mp4, webm, gif, …) or of pictures, or one file.")],
    reward: Annotated[list[str] | None, REWARD] = None,
    rewards: Annotated[Path | None, REWARDS] = None,
    prompts: Annotated[Path | None, PROMPTS] = None,
    out: Annotated[Path, typer.Option(help="Folder for scores.json and scores.png.", callback=writable_folder)] = Path(
        "scores"
    ),
    megapixels: Annotated[float, MEGAPIXELS] = 200.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print all scores as JSON.")] = False,
) -> None:
    """Score a folder of videos on this computer, one video at a time.

    Without --reward and --rewards: every scorer that is installed and needs no options. A video that cannot be read or
    scored is masked with its reason and stops no other.

    Example: `sage-grpo rewards score samples --reward motion --reward ocr --prompts prompts.csv`
    """
    from rich.console import Console

    from sage_grpo.progress import progress_of

    console = Console(stderr=as_json)
    with user_errors():
        with console.status("loading the scorers"):
            from sage_grpo.evaluation.clips import find_videos
            from sage_grpo.evaluation.folder import folder_scores, score_videos
            from sage_grpo.evaluation.pictures import draw_distributions
            from sage_grpo.evaluation.scorers import choose
            from sage_grpo.evaluation.texts import find_prompts
            from sage_grpo.files import write_json

            videos = find_videos([folder])
            root = folder if folder.is_dir() else folder.parent
            texts = find_prompts(videos, root, prompts)
            scorers = choose(reward or [], rewards)
        show_left_out(scorers, console)
        with progress_of("scoring", console) as emit:
            rows = score_videos(videos, texts, scorers.members, root, megapixels, emit)
        scores = folder_scores(rows, scorers.members)
        write_json(out / "scores.json", scores.to_json())
        draw_distributions(out / "scores.png", rows, scorers.keys)
    if as_json:
        import json

        print(json.dumps(scores.to_json() | {"out": str(out), "left_out": scorers.left_out}, ensure_ascii=False))
    else:
        _table(scores, console)
        console.print(f"Every video: {out / 'scores.json'}; distributions: {out / 'scores.png'}", highlight=False)
    if not any(row.scores for row in rows):
        Console(stderr=True).print("[bold red]error:[/] no video has any score; the reasons are above", highlight=False)
        raise typer.Exit(1)


def show_left_out(scorers: Scorers, console: Console) -> None:
    """Why a scorer that nobody named is not used."""
    from rich.text import Text

    for reason in dict.fromkeys(scorers.left_out.values()):
        names = ", ".join(name for name, why in scorers.left_out.items() if why == reason)
        console.print(Text.assemble(("not used: ", "dim"), names, (f" ({reason})", "dim")), highlight=False)


def _table(scores: FolderScores, console: Console) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from sage_grpo.evaluation.folder import number

    table = Table(box=box.SIMPLE_HEAD, title=f"{len(scores.rows)} videos", title_justify="left", title_style="bold")
    table.add_column("score", overflow="fold")
    for name in ("scored", "mean", "sd", "min", "max", "masked"):
        table.add_column(name, justify="right", no_wrap=True)
    for key, summary in scores.summary.items():
        masked = Text(str(summary.masked), style="yellow" if summary.masked else "")
        figures = map(number, (summary.mean, summary.sd, summary.min, summary.max))
        table.add_row(key, str(summary.scored), *figures, masked)
    console.print(table, highlight=False)
    by_reason: dict[str, list[str]] = {}
    for row in scores.rows:
        for reason in dict.fromkeys(row.masked.values()):
            by_reason.setdefault(reason, []).append(row.file)
    for reason, files in list(by_reason.items())[:REASONS]:
        others = f" and {len(files) - 1} more" if len(files) > 1 else ""
        keys = [key for key, summary in scores.summary.items() if reason in summary.reasons]
        names = "" if len(keys) == len(scores.summary) else f" ({', '.join(keys)})"
        console.print(Text.assemble(("masked ", "yellow"), f"{files[0]}{others}{names}: {reason}"), highlight=False)
    if len(by_reason) > REASONS:
        console.print(f"and {len(by_reason) - REASONS} more reasons, in scores.json", highlight=False)
