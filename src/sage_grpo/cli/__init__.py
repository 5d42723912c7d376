"""The command `sage-grpo`, one file a subcommand. Heavy imports wait until a command needs them."""

import os
import sys
from typing import Annotated

import typer

from sage_grpo import __version__
from sage_grpo.cli import lab, rewards, study
from sage_grpo.cli.doctor import doctor
from sage_grpo.cli.evaluate import evaluate
from sage_grpo.cli.explain import explain
from sage_grpo.cli.export import export
from sage_grpo.cli.first_run import first_run
from sage_grpo.cli.paper import paper
from sage_grpo.cli.plan import plan
from sage_grpo.cli.rehearse import rehearse
from sage_grpo.cli.report import report
from sage_grpo.cli.sample import sample
from sage_grpo.cli.serve import serve
from sage_grpo.cli.train import train
from sage_grpo.cli.tune import tune

app = typer.Typer(
    name="sage-grpo",
    help=(
        "Improve a video generator with rewards: stable GRPO post-training for flow-matching models.\n\n"
        "Start with `sage-grpo lab`: it trains a small video generator on this computer and shows what improved."
    ),
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sage-grpo {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


app.add_typer(lab.app, name="lab")
app.command()(doctor)
app.command()(train)
app.command()(tune)
app.command()(plan)
app.command()(report)
app.command()(rehearse)
app.command("first-run")(first_run)
app.command()(sample)
app.command("eval")(evaluate)
app.command()(export)
app.add_typer(rewards.app, name="rewards")
app.command()(serve)
app.add_typer(study.app, name="study")
app.command()(explain)
app.command()(paper)


def main() -> None:
    """A script does not import from the folder it is called in, as `python -m` does; rewards of yours may lie there.

    Last in line, so that a file there hides no library.
    """
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())
    app()
