"""`sage-grpo serve`: scorers as a service for many trainers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sage_grpo.cli.errors import user_errors


def serve(
    fleet: Annotated[Path, typer.Argument(help="YAML file with the scorers, their replicas and limits.")],
    address: Annotated[
        str | None, typer.Option(help="A Ray cluster to run on, such as auto; none starts Ray on this machine.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Validate the file and stop; nothing is started.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print address and scorers as JSON when it is up.")] = False,
) -> None:
    """Run scorers on Ray Serve until Ctrl-C; recipes ask them with `type: http`.

    The bearer token comes from the environment variable SAGE_GRPO_TOKEN, here and at the trainer.

    Example: `SAGE_GRPO_TOKEN=… sage-grpo serve rewards.yaml`
    """
    import json
    import signal
    import threading

    from rich.console import Console

    from sage_grpo.config import ConfigError, load_fleet

    console = Console(stderr=as_json)
    with user_errors():
        config = load_fleet(fleet)
        with console.status("loading Ray and the scorers' libraries"):
            try:
                from sage_grpo.serve import fleet as running
            except ModuleNotFoundError as error:
                raise ConfigError(f"serve needs {error.name}: pip install 'sage-grpo[serve]'") from error
            running.check(config)
        if check:
            names = {entry.type: entry.replicas for entry in config.scorers}
            print(json.dumps({"valid": True, "scorers": names}) if as_json else f"{fleet} is valid")
            return
        ended = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())
        count = sum(entry.replicas for entry in config.scorers)
        try:
            with console.status(f"starting {count} replica(s); weights are loaded now"):
                url = running.start(config, address)
            up = running.replicas()
            if as_json:
                print(json.dumps({"url": url, "replicas": up}), flush=True)
            else:
                _tell(console, url, up, config.token_variable)
            while not ended.wait(0.5):
                pass
        finally:
            with console.status("stopping"):
                running.stop(address)


def _tell(console: object, url: str, up: dict[str, int], variable: str) -> None:
    from rich.console import Console
    from rich.table import Table

    assert isinstance(console, Console)
    table = Table("scorer", "replicas")
    for name, number in up.items():
        if name != "gate":
            table.add_row(name, str(number))
    console.print(table)
    console.print(
        f"Answering at {url}; Ctrl-C ends it. In a recipe, with {variable} set for the trainer too:\n"
        f"  rewards:\n    - type: http\n      options: {{url: {url}}}",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )
