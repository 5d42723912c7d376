"""`python -m research`: the studies behind the numbers of the documentation, each resumable.

Run it in a clone of the repository, with the package installed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sage_grpo.cli.arguments import writable_folder
from sage_grpo.cli.errors import user_errors
from sage_grpo.cli.lab import one_thread

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(help=__doc__, no_args_is_help=True, rich_markup_mode="markdown", pretty_exceptions_enable=False)


def show(rows: Sequence[Mapping[str, Any]], table: str, as_json: bool, console: Console) -> None:
    """Print a study's results, as JSON or as a Markdown table."""
    if as_json:
        print(json.dumps(rows))
    else:
        console.print(table, highlight=False, markup=False)


@app.command()
def reproduce(
    out: Annotated[
        Path, typer.Option(help="Folder for runs, results.json, claims.md and figures.", callback=writable_folder)
    ],
    seeds: Annotated[
        int, typer.Option(min=8, help="A quarter of them first; half, then all, where a claim is open.")
    ] = 20,
    iterations: Annotated[int, typer.Option(min=2)] = 32,
    samples: Annotated[int, typer.Option(min=2, help="Fresh videos to evaluate each run on.")] = 480,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; default: one a core.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdicts as JSON.")] = False,
) -> None:
    """Check the paper's claims: every experiment over several seeds, each claim with its interval and verdict.

    Takes CPU hours (docs/claims.md names them). If killed, the same command continues.

    Example: `python -m research reproduce --out runs/claims --seeds 20`
    """
    from rich.console import Console

    from research.reproduce import reproduce as run

    console = Console(stderr=as_json)
    claims = run(out, seeds=seeds, iterations=iterations, samples=samples, workers=workers, console=console)
    if as_json:
        print(json.dumps([vars(claim) for claim in claims]))
        return
    colours = {"reproduced": "green", "not reproduced": "red", "equivalent": "cyan"}
    for claim in claims:
        colour = colours.get(claim.verdict, "yellow")
        console.print(f"[{colour}]{claim.verdict:<14}[/] {claim.statement}", highlight=False)
        console.print(f"{'':<15}{claim.measured} ({claim.test})", style="dim", highlight=False)
    console.print(f"details: {out / 'claims.md'}", highlight=False)


@app.command()
def efficiency(
    out: Annotated[
        Path,
        typer.Option(help="Folder for runs, results.json, efficiency.md and the figure.", callback=writable_folder),
    ],
    seeds: Annotated[int, typer.Option(min=2, help="Seeds of every setting.")] = 10,
    samples: Annotated[int, typer.Option(min=2, help="Fresh videos to evaluate the end of each run on.")] = 240,
    only: Annotated[list[str] | None, typer.Option(help="This setting, next to `lab-paper`.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; default: one a core.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure what each saving brings: passes of the network until a run is as good as one of `lab-paper`.

    Learning rates are found by the same small search for every setting, on seeds of their own. Takes CPU hours
    (docs/efficiency.md names them). If killed, the same command continues.

    Example: `python -m research efficiency --out runs/efficiency --seeds 10 --only fast`
    """
    from rich.console import Console

    console = Console(stderr=as_json)
    with user_errors():
        from research.efficiency import SAID, SETTINGS
        from research.efficiency import efficiency as run
        from sage_grpo.training.build import refuse_unknown

        refuse_unknown(only or (), set(SETTINGS), "--only: there is no setting {!r}")
        outcomes = run(out, seeds=seeds, samples=samples, only=only or (), workers=workers, console=console)
    if as_json:
        print(json.dumps([outcome.to_json() for outcome in outcomes]))
        return
    for o in outcomes:
        fewer = "{:.1f} times fewer passes [{:.1f}, {:.1f}]".format(*o.times_fewer) if o.times_fewer else "the measure"
        console.print(f"{SAID[o.name]:<52} {fewer}; {o.reached} of {o.seeds} seeds", highlight=False)
    console.print(f"details: {out / 'efficiency.md'}", highlight=False)


@app.command()
def settings(
    out: Annotated[Path, typer.Option(help="Folder for runs, results.json and figures.", callback=writable_folder)],
    seeds: Annotated[int, typer.Option(min=2, help="Seeds of every value.")] = 3,
    iterations: Annotated[
        int | None, typer.Option(min=2, help="Fewer for a quick look; default: the recipe's.")
    ] = None,
    samples: Annotated[int, typer.Option(min=2, help="Fresh videos to evaluate the end of each run on.")] = 240,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; default: one a core.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Show what runs look like when a setting is too low or too high, and compare `tune` with a whole grid.

    Takes half a CPU hour. If killed, the same command continues.

    Example: `python -m research settings --out runs/settings`
    """
    from rich.console import Console

    from research.settings import settings as run

    console = Console(stderr=as_json)
    one_thread()
    found = run(out, seeds=seeds, iterations=iterations, samples=samples, workers=workers, console=console)
    if as_json:
        print(json.dumps(found))
        return
    for row in found["settings"]:
        mean, low, high = row["ends"]["reward"]
        console.print(
            f"{row['setting']:<28} {row['value']:<10g} reward {mean:.3f} [{low:.3f}, {high:.3f}]", highlight=False
        )
    for row in found["tune"]:
        console.print(
            f"seed {row['seed']}: tune chooses {row['chosen']}, reward {row['reward']:.3f}; "
            f"the best of the grid is {row['best']}, {row['best_reward']:.3f}",
            highlight=False,
        )


@app.command()
def halving(
    out: Annotated[Path, typer.Option(help="File for the figures, as JSON.")] = Path("halving.json"),
    log: Annotated[Path, typer.Option(help="Runs of `settings` to choose from.")] = Path("docs/tuning/runs.jsonl"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Compare the search of `tune` with Optuna's pruners, on the curves on record. Makes no runs; needs Optuna.

    Example: `python -m research halving --out docs/tuning/halving.json`
    """
    from dataclasses import asdict

    from research.halving import write
    from sage_grpo.cli.errors import user_errors

    with user_errors():
        rows = write(log, out)
    if as_json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    for row in rows:
        print(
            f"seed {row.seed}, {row.way:<26} {row.share:.0%} of the best (worst order {row.worst_share:.0%}) "
            f"for {row.cost:.0%} of the grid (worst order {row.worst_cost:.0%})"
        )


@app.command()
def feedback(
    out: Annotated[
        Path, typer.Option(help="Folder for runs, results.json and feedback.png.", callback=writable_folder)
    ],
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each rule from each start.")] = 10,
    iterations: Annotated[int, typer.Option(min=22, help="Of each run, two updates in each.")] = 96,
    samples: Annotated[int, typer.Option(min=48, help="Fresh videos that a trained model is judged on.")] = 96,
    rules: Annotated[str, typer.Option(help="Which forms of kl.feedback.")] = "proportional,lagrangian,paper",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; default: one a core.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure whether feedback on λ holds the KL at its target, from a λ ten times too small and ten times too large.

    A run takes four minutes of one core. If killed, the same command continues.

    Example: `python -m research feedback --out runs/feedback --seeds 1 --rules proportional`
    """
    from rich.console import Console

    from research import feedback as study
    from sage_grpo.config import ConfigError

    console = Console(stderr=as_json)
    one_thread()
    with user_errors():
        chosen = rules.split(",")
        if unknown := sorted(set(chosen) - set(study.RULES)):
            raise ConfigError(f"--rules: there is no {unknown[0]!r}; use some of {','.join(study.RULES)}")
        runs = study.feedback(
            out, seeds=seeds, iterations=iterations, samples=samples, rules=chosen, workers=workers, console=console
        )
    if as_json:
        print((out / "results.json").read_text("utf-8"))
        return
    console.print(study.as_markdown(runs), highlight=False, markup=False)


@app.command()
def signal(
    out: Annotated[Path, typer.Option(help="Folder for results and table.txt.", callback=writable_folder)],
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; default: one a core.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure at which sampling steps rollouts of the untrained base differ in what they show; ten CPU minutes.

    Example: `python -m research signal --out runs/signal`
    """
    from rich.console import Console

    from research.signal import as_markdown
    from research.signal import signal as run

    console = Console(stderr=as_json)
    one_thread()
    with user_errors():
        rows = run(out, workers=workers, console=console)
    show(rows, as_markdown(rows), as_json, console)


@app.command()
def outside(
    out: Annotated[Path, typer.Option(help="Folder for runs and table.txt.", callback=writable_folder)],
    seeds: Annotated[int, typer.Option(min=2, help="Runs of each setting at each width, from seed 10 on.")] = 10,
    samples: Annotated[int, typer.Option(min=96, help="Fresh videos of each run.")] = 240,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; default: one a core.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure what a penalty on velocities outside the window does, against the same passes without it, at two widths.

    A run takes two to three minutes of one core. If killed, the same command continues.

    Example: `python -m research outside --out runs/outside --seeds 2`
    """
    from rich.console import Console

    from research.outside import as_markdown
    from research.outside import outside as run

    console = Console(stderr=as_json)
    one_thread()
    with user_errors():
        rows = run(out, seeds=seeds, samples=samples, workers=workers, console=console)
    show(rows, as_markdown(rows), as_json, console)


@app.command()
def windows(
    out: Annotated[Path, typer.Option(help="Folder for runs and table.txt.", callback=writable_folder)],
    seeds: Annotated[int, typer.Option(min=2, help="Runs of each window, from seed 200 on.")] = 5,
    samples: Annotated[int, typer.Option(min=96, help="Fresh videos of each run.")] = 240,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; default: one a core.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Compare places of the stochastic step by training with guidance: first half, anywhere, last three quarters.

    With 8 and with 20 sampling steps. A run takes two to three minutes of one core. If killed, the same command
    continues.

    Example: `python -m research windows --out runs/windows --seeds 2`
    """
    from rich.console import Console

    from research.windows import as_markdown
    from research.windows import windows as run

    console = Console(stderr=as_json)
    one_thread()
    with user_errors():
        rows = run(out, seeds=seeds, samples=samples, workers=workers, console=console)
    show(rows, as_markdown(rows), as_json, console)


@app.command()
def guidance(
    out: Annotated[Path, typer.Option(help="Folder for runs and table.txt.", callback=writable_folder)],
    seeds: Annotated[int, typer.Option(min=0, help="Runs of recipe `lab`; 0 judges the base alone, in seconds.")] = 5,
    samples: Annotated[int, typer.Option(min=96, help="Fresh videos of each model and guidance scale.")] = 240,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; default: one a core.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure what guidance does without training, and what training does with and without guidance.

    A run takes three minutes of one core. If killed, the same command continues.

    Example: `python -m research guidance --out runs/guidance --seeds 0`
    """
    from rich.console import Console

    from research.guidance import as_markdown
    from research.guidance import guidance as run

    console = Console(stderr=as_json)
    one_thread()
    with user_errors():
        rows = run(out, seeds=seeds, samples=samples, workers=workers, console=console)
    show(rows, as_markdown(rows), as_json, console)


@app.command()
def compare(
    out: Annotated[
        Path, typer.Option(help="Folder for runs, results.json, compare.md and figures.", callback=writable_folder)
    ],
    seeds: Annotated[int, typer.Option(min=2, help="Seeds of every objective.")] = 10,
    samples: Annotated[int, typer.Option(min=2, help="Fresh videos to evaluate the end of each run on.")] = 240,
    only: Annotated[list[str] | None, typer.Option(help="This objective, next to grpo.")] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(
            help="once, twice, four-times (updates of a rollout), guided, stale-1, stale-2, stale-4 (iterations "
            "between a rollout and its update) or text (numbers, with OCR); default: once."
        ),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; default: one a core.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Compare objectives at equal passes of the network, with settings found by the same search for each.

    Takes CPU hours (docs/objectives.md names them). If killed, the same command continues.

    Example: `python -m research compare --out runs/compare --seeds 10 --only nft`
    """
    from rich.console import Console

    console = Console(stderr=as_json)
    with user_errors():
        from research.compare import GROUPS, OBJECTIVE_NAMES
        from research.compare import compare as run
        from research.objective_results import FIRST
        from sage_grpo.training.build import refuse_unknown

        refuse_unknown(only or (), set(OBJECTIVE_NAMES), "--only: there is no objective {!r}")
        refuse_unknown(group or (), set(GROUPS), "--group: there is no group {!r}")
        chosen = group or ["once"]
        if any(GROUPS[name].world == "text" for name in chosen):
            from sage_grpo.registry import resolve_reward

            resolve_reward("ocr")  # fails first, with the install line, if the library is missing
        found = run(out, seeds=seeds, samples=samples, only=only or (), groups=chosen, workers=workers, console=console)
    if as_json:
        print(json.dumps({name: [outcome.to_json() for outcome in rows] for name, rows in found.items()}))
        return
    for name, outcomes in found.items():
        console.print(f"[bold]{GROUPS[name].said}[/]", highlight=False)
        for o in outcomes:
            end, difference = o.ends["reward"], o.against["reward"].mean
            against = f"; against {FIRST} {difference:+.3f} (p = {o.p['reward']:.2g})" if o.name != FIRST else ""
            said = f"  {o.name:<6} reward {end.mean:.3f} [{end.low:.3f}, {end.high:.3f}]{against}"
            console.print(said, highlight=False)
    console.print(f"details: {out / 'compare.md'}", highlight=False)


if __name__ == "__main__":
    app(prog_name="python -m research")
