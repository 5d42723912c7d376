"""`sage-grpo rewards audit`: how scorers are gamed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sage_grpo.cli.arguments import whole_seed, writable_folder
from sage_grpo.cli.errors import user_errors
from sage_grpo.cli.rewards_score import MEGAPIXELS, PROMPTS, REWARD, REWARDS, show_left_out

if TYPE_CHECKING:
    from rich.console import Console

    from sage_grpo.evaluation.audit.audit import AuditResult
    from sage_grpo.evaluation.audit.copies import Clip


def audit(
    videos: Annotated[list[Path] | None, typer.Argument(help="Videos or folders; none: ten clips made here.")] = None,
    reward: Annotated[list[str] | None, REWARD] = None,
    rewards: Annotated[Path | None, REWARDS] = None,
    prompts: Annotated[Path | None, PROMPTS] = None,
    out: Annotated[
        Path, typer.Option(help="Folder for audit.json, audit.md, audit.png, copies.png.", callback=writable_folder)
    ] = Path("audit"),
    seed: Annotated[
        int, typer.Option(help="Of the noise, the shaking and the order of frames.", callback=whole_seed)
    ] = 0,
    megapixels: Annotated[float, MEGAPIXELS] = 200.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Find out how scorers are gamed: score clips and degraded copies of them (static, blurred, shuffled, …).

    A change is given in spreads, the standard deviation of the score over the clips as they are. *Gamed by*: copies
    that surely score higher. *Blind to*: copies that score neither surely higher nor lower. With --rewards and several
    scores, their weighted sum is audited too. Scorers that hear are also asked about degraded sound (muted, late, …).

    Example: `sage-grpo rewards audit --reward motion --reward sharpness --out audit`
    """
    from rich.console import Console

    from sage_grpo.progress import progress_of

    console = Console(stderr=as_json)
    with user_errors():
        with console.status("loading the scorers"):
            from sage_grpo.evaluation.audit.audit import audit as run
            from sage_grpo.evaluation.pictures import draw_audit, markdown
            from sage_grpo.evaluation.scorers import choose
            from sage_grpo.files import atomic_write, write_json

            clips = _clips(videos or [], prompts, megapixels)
            scorers = choose(reward or [], rewards)
        show_left_out(scorers, console)
        with progress_of("auditing", console) as emit:
            result = run(clips, scorers, seed=seed, megapixels=megapixels, emit=emit)
        write_json(out / "audit.json", result.to_json())
        atomic_write(out / "audit.md", markdown(result).encode())
        draw_audit(out / "audit.png", result)
        shown = next(clip for clip in clips if clip.name == result.clips[0])
        _sheet(out / "copies.png", shown, seed)
        sounds = _sounds(out / "sounds.png", shown, seed) if result.heard else ""
    if as_json:
        import json

        print(json.dumps(result.to_json() | {"out": str(out), "left_out": scorers.left_out}, ensure_ascii=False))
        return
    _table(result, console)
    console.print(
        f"All numbers: {out / 'audit.md'}, {out / 'audit.json'}; picture: {out / 'audit.png'}; "
        f"what the copies look like: {out / 'copies.png'}{sounds}",
        highlight=False,
    )


def _clips(videos: list[Path], prompts: Path | None, megapixels: float) -> list[Clip]:
    from functools import partial

    from sage_grpo.config import ConfigError
    from sage_grpo.evaluation.audit.copies import Clip
    from sage_grpo.evaluation.clips import as_shown, find_videos, listen, open_video
    from sage_grpo.evaluation.texts import find_prompts

    if not videos:
        from sage_grpo.core.protocols import Prompt
        from sage_grpo.evaluation.audit.natural import clip, scenes
        from sage_grpo.evaluation.audit.natural_sound import heard_clip

        if prompts:
            raise ConfigError("--prompts is for videos of your own; the clips made here have theirs")
        return [
            Clip(name, Prompt(scene.prompt), partial(clip, name, scene), partial(heard_clip, name, scene))
            for name, scene in scenes().items()
        ]
    files = find_videos(videos)
    root = videos[0] if len(videos) == 1 and videos[0].is_dir() else Path()
    texts = find_prompts(files, root, prompts)
    return [
        Clip(
            str(path),
            text,
            lambda path=path: open_video(path, megapixels).frames,  # type: ignore[misc]
            lambda path=path: listen(path, as_shown(open_video(path, megapixels))),  # type: ignore[misc]
        )
        for path, text in zip(files, texts, strict=True)
    ]


def _sheet(path: Path, clip: Clip, seed: int) -> None:
    from sage_grpo.evaluation.audit.degrade import DEGRADATIONS, degrade
    from sage_grpo.videos import contact_sheet

    frames = clip.load()
    rows = [("as it is", frames), *((name, degrade(name, frames, seed)) for name in DEGRADATIONS)]
    contact_sheet(path, rows, columns=6, title=f"{clip.name} and its degraded copies")


def _sounds(path: Path, clip: Clip, seed: int) -> str:
    """A picture of the clip's sound and its copies, and a word about it."""
    from sage_grpo.evaluation.audit.degrade_sound import SOUND_DEGRADATIONS, degrade_sound
    from sage_grpo.evaluation.pictures import draw_sounds

    videos, _ = clip.shown(uses_audio=True)
    if videos.sound is None or not videos.sample_rate:
        return ""
    wave, rate = videos.sound[0], videos.sample_rate
    copies = [(name, degrade_sound(name, wave, rate, seed)) for name in SOUND_DEGRADATIONS]
    draw_sounds(path, [("as it is", wave), *copies], rate, f"{clip.name}: its sound and degraded copies")
    return f"; and sound like: {path}"


def _table(result: AuditResult, console: Console) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from sage_grpo.evaluation.folder import number

    sounds = f", {len(result.sounds)} of their sound" if result.heard else ""
    kinds = f"{len(result.degradations)} kinds of copies{sounds}"
    title = f"{len(result.clips)} clips, {kinds}; changes in spreads of the score"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", show_lines=False)
    table.add_column("score", overflow="fold", ratio=3)
    table.add_column("clips", justify="right", no_wrap=True)
    table.add_column("gamed by", ratio=6)
    table.add_column("blind to", ratio=5)
    for key in result.scored:
        change = {name: number(cell.change, 2) for name, cell in result.cells[key].items()}
        gamed = ", ".join(f"{name} +{change[name]}" for name in result.those(key, "gamed"))
        blind = ", ".join(result.those(key, "blind"))
        clips = str(result.natural[key].clips)
        table.add_row(key, clips, Text(gamed or "none", style="red" if gamed else "green"), Text(blind or "none"))
    console.print(table, highlight=False)
    for name, reason in result.unreadable.items():
        console.print(Text.assemble(("left out ", "yellow"), f"{name}: {reason}"), highlight=False)
    for key in (key for key in result.keys if key not in result.scored):
        reasons = result.masked.get(key, {"no clip has all of its scores": 1})
        console.print(Text.assemble(("no score ", "yellow"), f"{key}: {next(iter(reasons))}"), highlight=False)
