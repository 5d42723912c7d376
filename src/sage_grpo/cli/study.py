"""`sage-grpo study`: people compare videos side by side without knowing their sources."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sage_grpo.cli.arguments import finite, writable_folder
from sage_grpo.cli.errors import user_errors
from sage_grpo.cli.study_make import make

if TYPE_CHECKING:
    from rich.console import Console

    from sage_grpo.evaluation.study.results import StudyResults
    from sage_grpo.evaluation.study.server import Server
    from sage_grpo.evaluation.study.store import Store

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")
FOLDER = typer.Argument(help="Folder that `study make` wrote.")
JSON = typer.Option("--json", help="Print it as JSON.")


@app.callback()
def _study() -> None:
    """Ask people which videos are better: blind, side by side, on a page of this computer.

    Example: `sage-grpo study make runs/eval --method sage --out study`, `sage-grpo study run study`,
    `sage-grpo study results study`
    """


app.command()(make)


@app.command()
def run(
    folder: Annotated[Path, FOLDER] = Path("study"),
    host: Annotated[
        str, typer.Option(help="0.0.0.0 lets other computers in, by a link with an access code.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 picks a free one.")] = 8723,
    public_url: Annotated[
        str | None, typer.Option(help="Where raters reach it through a proxy, as https://study.example.org.")
    ] = None,
    raters: Annotated[
        int | None, typer.Option(min=1, help="Close to new raters once every comparison has so many.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the address as JSON, and progress at the end.")
    ] = False,
) -> None:
    """Ask raters, until Ctrl-C. Every answer is on the disk before the next page is shown; a restart loses none.

    Example: `sage-grpo study run study --raters 29`
    """
    import json
    from dataclasses import asdict

    from rich.console import Console

    console = Console(stderr=as_json)
    with user_errors():
        with console.status("checking the videos"):
            from sage_grpo.evaluation.study.plan import check_videos, read_plan
            from sage_grpo.evaluation.study.server import Server
            from sage_grpo.evaluation.study.store import Store

            plan, plan_hash = read_plan(folder)
            check_videos(folder, plan)
        store = Store(folder, plan, plan_hash, raters)
        server = Server(host, port, folder, store, public_url)
    if as_json:
        print(json.dumps({"url": server.url}), flush=True)
    else:
        console.print(f"Give raters this link: [bold]{server.url}[/]\nCtrl-C ends it.", highlight=False, soft_wrap=True)
    if not server.local:
        console.print(
            "[yellow]warning:[/] whoever has the link can take part"
            + (
                ""
                if public_url
                else "; it is plain HTTP, which others on the way can read: for the open internet put a "
                "proxy with TLS in front and give --public-url"
            ),
            highlight=False,
        )
    _wait(server, store, console)
    progress = store.progress()
    if as_json:
        print(json.dumps(asdict(progress)))
    elif progress.answers:
        console.print(f"Ended. Next: sage-grpo study results {folder}", highlight=False)


def _wait(server: Server, store: Store, console: Console) -> None:
    """Serve a study until a signal arrives, and print the number of answers whenever it changes."""
    import signal
    import threading

    from sage_grpo.evaluation.study.store import StudyProgress

    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    printed = StudyProgress(0, 0, 0, 0)
    while not ended.wait(2.0):
        if (now := store.progress()) != printed:
            printed = now
            text = f"{now.raters} raters, {now.finished} finished; {now.answers} of {now.asked} answers"
            console.print(text, highlight=False)
    server.shutdown()
    server.server_close()
    store.close()


@app.command()
def results(
    folder: Annotated[Path, FOLDER] = Path("study"),
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for results.json, .md and .html; default: the study's.", callback=writable_folder),
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Win rates, Bradley–Terry scores, agreement and checks; may be asked while the study runs.

    Example: `sage-grpo study results study`
    """
    from rich.console import Console

    console = Console(stderr=as_json)
    with user_errors(), console.status("counting"):
        from sage_grpo.evaluation.study.present import markdown, page
        from sage_grpo.evaluation.study.results import dump_results, study_results
        from sage_grpo.files import atomic_write
        from sage_grpo.report.page import write_page

        figures = study_results(folder)
        target = out or folder
        atomic_write(target / "results.json", dump_results(figures))
        atomic_write(target / "results.md", markdown(figures).encode())
        write_page(page(figures, f"sage-grpo study results {folder}"), target / "results.html")
    if as_json:
        import json

        print(json.dumps(figures.to_json(), ensure_ascii=False))
        return
    _tell(figures, console)
    console.print(f"Everything: {target / 'results.html'}, results.md and results.json next to it", highlight=False)


def _tell(figures: StudyResults, console: Console) -> None:
    from rich import box
    from rich.table import Table

    from sage_grpo.evaluation.study.present import quality_table, rate_table, score_table, summary

    console.print(summary(figures), highlight=False)
    main = figures.main
    for content in (rate_table(main, "Win rates"), score_table(main), quality_table(main)):
        title = content.title
        table = Table(*content.header, box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold")
        for row in content.rows:
            table.add_row(*row)
        console.print(table)


@app.command()
def size(
    raters: Annotated[list[int] | None, typer.Option(min=2, help="Several times for several rows.")] = None,
    prompts: Annotated[list[int] | None, typer.Option(min=2, help="Several times for several columns.")] = None,
    rate: Annotated[
        float, typer.Option(min=0, max=1, help="Expected win rate; 0.5 is the widest.", callback=finite)
    ] = 0.5,
    ties: Annotated[float, typer.Option(min=0, max=1, help="Expected share of ties.", callback=finite)] = 0.2,
    by_rater: Annotated[
        float, typer.Option(min=0, max=0.5, help="Share of variance between raters.", callback=finite)
    ] = 0.05,
    by_prompt: Annotated[
        float, typer.Option(min=0, max=0.5, help="Share of variance between prompts.", callback=finite)
    ] = 0.15,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """How many raters and prompts: half the width of a win rate's 95 % interval, in percentage points.

    Example: `sage-grpo study size --raters 10 --raters 29 --prompts 32`
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    with user_errors(ValueError):
        from sage_grpo.evaluation.study.statistics import half_width

        columns = prompts or [8, 16, 32, 64, 128]
        rows = {
            r: {p: 100 * half_width(r, p, rate, by_rater, by_prompt, ties) for p in columns}
            for r in raters or [5, 10, 20, 29, 40]
        }
    if as_json:
        import json

        print(json.dumps({"points": rows, "rate": rate, "ties": ties, "by_rater": by_rater, "by_prompt": by_prompt}))
        return
    table = Table("raters", *(f"{p} prompts" for p in columns), box=box.SIMPLE_HEAD)
    for r, cells in rows.items():
        table.add_row(str(r), *(f"±{cells[p]:.1f}" for p in columns))
    Console().print(table)
