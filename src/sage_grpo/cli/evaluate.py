"""`sage-grpo eval`: checkpoints against each other on a prompt set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sage_grpo.cli.arguments import TrustCode, writable_folder
from sage_grpo.cli.errors import user_errors

if TYPE_CHECKING:
    from rich.console import Console

    from sage_grpo.evaluation.results import EvaluationResults

SOURCES = typer.Argument(
    metavar="NAME=PATH",
    help="Run folders, checkpoints of them, or recipes (untrained models); a path alone gets a name of its own.",
)
PROMPTS = typer.Option(
    "--prompts",
    help="txt, jsonl, csv or parquet with columns prompt and, if you like, id and tags; or `videos`, the set that "
    "ships. Without it: a laboratory model's own prompts, else `videos`.",
)


def evaluate(
    sources: Annotated[list[str], SOURCES],
    prompts: Annotated[str | None, PROMPTS] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Videos of each prompt: seeds 0, 1, …")] = 4,
    scorer: Annotated[list[str] | None, typer.Option(help="One more held-out scorer, with its defaults.")] = None,
    scorers: Annotated[
        Path | None, typer.Option(help="More of them: YAML with a list as under `rewards:` of a recipe.")
    ] = None,
    out: Annotated[
        Path,
        typer.Option(help="Folder for videos, scores, results.json, table.md, report.html.", callback=writable_folder),
    ] = Path("eval"),
    tag: Annotated[list[str] | None, typer.Option(help="Only prompts with it, such as subject=animal.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first of the prompts: for a trial.")] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Sampling steps of all sources, not those of training.")
    ] = None,
    order: Annotated[
        int | None, typer.Option(min=1, max=2, help="Order of the sampler of all sources, not that of training.")
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="Of the scores in Overall, such as VQ=1,MQ=1,TA=1; without: the first recipe's.")
    ] = None,
    no_base: Annotated[
        bool, typer.Option("--no-base", help="Compare with the first source, no untrained model.")
    ] = False,
    last: Annotated[bool, typer.Option("--last", help="The last weights, even if a run averaged them.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Score again what a scorer failed on.")] = False,
    trust_code: TrustCode = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Make videos with every source from the same prompts and seeds, score them, and compare in pairs.

    The untrained model of the first run is the base unless you name one: base=RECIPE. Columns are the rewards and
    monitors of the recipes, and what --scorer and --scorers add. Stopped and called again, it continues.

    Several GPUs: `torchrun --nproc-per-node=8 -m sage_grpo eval …` shares the prompts.

    Example: `sage-grpo eval paper=runs/paper best=runs/best/checkpoints/step-00000100 --seeds 4 --scorer motion`
    """
    import shlex
    import sys

    from rich.console import Console

    from sage_grpo.progress import progress_of

    with user_errors():
        from sage_grpo.distributed.processes import leave
        from sage_grpo.evaluation.prompts import find_tasks
        from sage_grpo.evaluation.run import EvaluationPlan, meet
        from sage_grpo.evaluation.run import evaluate as run
        from sage_grpo.evaluation.scores import read_scorers, read_weights
        from sage_grpo.evaluation.sources import find_sources
        from sage_grpo.runs.redact import clean_command

        sampling = [f"sampling.{key}={value}" for key, value in (("steps", steps), ("order", order)) if value]
        candidates = find_sources(
            sources, base=not no_base, average=not last, overrides=sampling, trust_code=trust_code
        )
        tasks = find_tasks(prompts, candidates[0].config.model.type, tag or [], limit)
        more, chosen = read_scorers(scorer or [], scorers), read_weights(weights) if weights else None
        command = shlex.join(["sage-grpo", *clean_command(sys.argv)[1:]]) if sys.argv[1:2] == ["eval"] else ""
        plan = EvaluationPlan(candidates, tasks, range(seeds), out, more, not last, retry, command, chosen)
        processes = meet(candidates[0].config.tuning.device)
        main = processes is None or processes.main
        console = Console(stderr=as_json, quiet=not main)
        results = run(plan, lambda what: progress_of(what, console), processes)
    if results:
        _print(results, out, as_json, console)
    if processes:
        leave()


def _print(results: EvaluationResults, out: Path, as_json: bool, console: Console) -> None:
    if as_json:
        import json

        print(json.dumps(results.to_json() | {"out": str(out)}, ensure_ascii=False))
        return
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from sage_grpo.evaluation.table import (
        KEY,
        arrow,
        digits_of,
        losses,
        main_table,
        mark,
        percent,
        plain,
        ranked,
        with_interval,
    )

    names, reference, digits = list(results.sources), results.reference, digits_of(results)
    differences = {(p.score, p.source): p.difference for p in results.comparisons if p.against == reference}
    table = Table(box=box.SIMPLE_HEAD, title=main_table(results).note, title_justify="left", title_style="bold")
    for name in ("score", "source", "mean", f"difference to {reference}", "wins, %"):
        table.add_column(name, justify="left" if name in ("score", "source") else "right", no_wrap=True)
    for score in results.scores:
        n = digits[score.name]
        means = [results.means[name][score.name].mean for name in names]
        for i, (name, mean, rank) in enumerate(zip(names, means, ranked(means, score.lower), strict=True)):
            pair = differences.get((score.name, name))
            more = [with_interval(pair, n) + mark(pair), percent(pair.wins)] if pair else ["", ""]
            cell = Text(plain(mean, n), style={1: "bold", 2: "underline", 3: "italic"}.get(rank or 0, ""))
            label = [arrow(score), "" if score.trained else Text("held out", style="dim")]
            table.add_row(label[i] if i < 2 else "", name, cell, *more)
        table.add_section()
    console.print(table, highlight=False)
    console.print(Text(KEY, style="dim"))
    if lost := losses(results):
        console.print(lost, style="yellow", highlight=False)
    console.print(f"Tables: {out / 'table.md'}; page with videos: {out / 'report.html'}", highlight=False)
