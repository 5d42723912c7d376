"""`sage-grpo study make`: plan a blind comparison of videos."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sage_grpo.cli.arguments import finite, whole_seed, writable_folder
from sage_grpo.cli.errors import user_errors

if TYPE_CHECKING:
    from sage_grpo.evaluation.study.plan import Dimension


def make(
    folder: Annotated[Path | None, typer.Argument(help="Folder of `sage-grpo eval`.")] = None,
    videos: Annotated[
        list[str] | None, typer.Option(help="name=folder of equally named mp4 files; once for each source.")
    ] = None,
    texts: Annotated[
        Path | None, typer.Option(help="Prompts for --videos: txt, jsonl, csv; without it the .txt next to a video.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder to write.", callback=writable_folder)] = Path("study"),
    method: Annotated[str | None, typer.Option(help="Compare this source with each other.")] = None,
    against: Annotated[str | None, typer.Option(help="Compare each other source with this.")] = None,
    prompts: Annotated[int, typer.Option(min=1, help="At most so many, drawn by the seed.")] = 32,
    dimension: Annotated[
        list[str] | None,
        typer.Option(help="visual, motion, semantic or your own as 'key=Name: question'; default: the three."),
    ] = None,
    checks: Annotated[int, typer.Option(min=0, help="Attention checks a rater.")] = 3,
    max_failed: Annotated[
        float, typer.Option(min=0, max=1, help="Share of checks that one may fail.", callback=finite)
    ] = 0.34,
    per_rater: Annotated[int | None, typer.Option(min=1, help="Comparisons a rater; default: all.")] = None,
    title: Annotated[str, typer.Option(help="What raters see; name no method in it.")] = "Which video is better?",
    contact: Annotated[str, typer.Option(help="Who runs the study and how to reach them, for raters.")] = "",
    seed: Annotated[int, typer.Option(callback=whole_seed)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was planned as JSON.")] = False,
) -> None:
    """Plan a study. Without --method and --against every pair of sources is compared.

    Example: `sage-grpo study make --videos base=samples/base --videos new=samples/new --out study`
    """
    from rich.console import Console

    from sage_grpo.config import ConfigError
    from sage_grpo.progress import progress_of

    console = Console(stderr=as_json)
    with user_errors():
        with console.status("loading the libraries"):
            from sage_grpo.evaluation.study import make as making
        if (folder is None) == (not videos):
            raise ConfigError("name either a folder of `sage-grpo eval` or --videos name=folder, once for each source")
        sources, items = making.from_eval(folder) if folder else making.from_folders(_folders(videos or []), texts)
        pairs = making.choose_pairs(sources, method, against)
        dimensions = _dimensions(dimension or list(making.DIMENSIONS))
        with progress_of("preparing videos", console) as emit:
            plan = making.make_study(
                out,
                sources,
                items,
                pairs,
                prompts=prompts,
                dimensions=dimensions,
                checks=checks,
                per_rater=per_rater,
                max_failed=max_failed,
                seed=seed,
                title=title,
                contact=contact,
                emit=emit,
            )
    prompt_count = len({comparison.prompt_id for comparison in plan.comparisons})
    if as_json:
        import json

        content = {
            "out": str(out),
            "comparisons": len(plan.comparisons),
            "checks": len(plan.checks),
            "pairs": plan.pairs,
            "prompts": prompt_count,
            "per_rater": plan.per_rater,
            "notes": plan.notes,
        }
        print(json.dumps(content))
        return
    console.print(
        f"{len(plan.comparisons)} comparisons of {prompt_count} prompts, {plan.per_rater} a rater, with "
        f"{len(plan.checks)} attention checks and one pair repeated. The rule for leaving raters out is in "
        f"{out / 'plan.json'}, and must not change from now on.",
        highlight=False,
    )
    for note in plan.notes:
        console.print(f"[yellow]note:[/] {note}", highlight=False)
    if any(not comparison.prompt for comparison in plan.comparisons):
        console.print("[yellow]note:[/] some videos have no prompt; alignment with the text cannot be judged")
    console.print(f"Next: sage-grpo study run {out}", highlight=False)


def _folders(videos: list[str]) -> dict[str, Path]:
    from sage_grpo.config import ConfigError

    folders: dict[str, Path] = {}
    for text in videos:
        name, equals, path = text.partition("=")
        if not equals or not name or not Path(path).is_dir():
            raise ConfigError(f"--videos {text}: write it as name=folder, with a folder that is there")
        if name in folders:
            raise ConfigError(f"--videos has two folders of the name {name!r}; names tell the sources apart")
        folders[name] = Path(path)
    return folders


def _dimensions(texts: list[str]) -> list[Dimension]:
    from sage_grpo.config import ConfigError
    from sage_grpo.evaluation.study.make import DIMENSIONS
    from sage_grpo.evaluation.study.plan import Dimension

    dimensions: list[Dimension] = []
    for text in texts:
        key, equals, rest = text.partition("=")
        name, _, question = rest.partition(":")
        if not equals and key not in DIMENSIONS:
            known = ", ".join(DIMENSIONS)
            raise ConfigError(f"there is no dimension {key!r}; there are {known}, or your own as 'key=Name: question'")
        if equals and not (name.strip() and question.strip()):
            raise ConfigError(f"--dimension {text!r}: write it as 'key=Name: question'")
        name, question = (name.strip(), question.strip()) if equals else DIMENSIONS[key]
        try:
            dimensions.append(Dimension(key=key, name=name, question=question))
        except ValueError:
            raise ConfigError(f"--dimension {text!r}: a key is short, of lower-case letters and digits") from None
    keys = [dimension.key for dimension in dimensions]
    if len(set(keys)) < len(keys):
        raise ConfigError(f"a dimension is named twice: {', '.join(keys)}")
    return dimensions
