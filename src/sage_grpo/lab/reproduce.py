"""`sage-grpo lab reproduce`: run the grid, judge the claims, draw the figures."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console

from sage_grpo.files import atomic_write
from sage_grpo.lab import figures
from sage_grpo.lab.claims import Claim, Results, as_markdown, judge
from sage_grpo.lab.direct import measure_directly
from sage_grpo.lab.grid import Base, Job, Run, experiments, run_grid


def reproduce(
    out: Path,
    *,
    seeds: int,
    iterations: int,
    samples: int,
    only: list[str] | None = None,
    workers: int | None = None,
    console: Console | None = None,
) -> list[Claim]:
    """Runs, results.json, claims.md and figures into `out`; called again after a kill, it goes on.

    Half of the seeds and rollouts decide what they can; the others are made for claims that are open then.
    """
    console = console or Console()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    console.print("measuring the base model directly", highlight=False)
    direct = measure_directly(out, (), workers, console)
    grid = experiments(direct["matched"])
    names = only or list(grid)
    first = -(-seeds // 2)

    def look(asked: Iterable[tuple[str, int]]) -> tuple[list[dict[str, Any]], Results]:
        jobs: list[Run] = [Job(name, grid[name], seed, iterations, samples, out) for name, seed in asked]
        base, *runs = run_grid([Base(samples), *jobs], out, workers, console)
        return runs, Results(runs, base)

    asked = [(name, seed) for seed in range(first) for name in names]
    runs, results = look(asked)
    if only:
        return []
    claims = judge(results, direct)
    still = {name: None for claim in claims if claim.verdict == "undecided" for name in claim.rests_on}
    again = {name: None for claim in claims if claim.verdict == "undecided" for name in claim.measured_on}
    if still or again:
        console.print(
            f"more seeds of {len(still)} experiments and rollouts of {len(again)} kernels, on which open claims rest",
            highlight=False,
        )
        direct = measure_directly(out, again, workers, console)
        runs, results = look([*asked, *((name, seed) for seed in range(first, seeds) for name in still)])
        claims = judge(results, direct)
    summary = {
        "seeds": seeds,
        "iterations": iterations,
        "samples": samples,
        "cpu_hours": sum(run["cpu_seconds"] for run in runs) / 3600,
        "longest_run_seconds": max(run["cpu_seconds"] for run in runs),
        "base": {"accuracy": results.base["accuracy"], "diversity": results.base["diversity"]},
        "claims": [vars(claim) for claim in claims],
        "experiments": {
            name: {
                "gain": list(results.gain(name).values()),
                "accuracy": list(results.accuracy(name).values()),
                "drift": list(results.drift(name).values()),
                "diversity": list(results.diversity(name).values()),
            }
            for name in results.runs
        },
        "direct": {key: value for key, value in direct.items() if key != "quality"},  # which is long
    }
    atomic_write(out / "results.json", (json.dumps(summary, indent=1) + "\n").encode())
    atomic_write(out / "claims.md", as_markdown(claims).encode())
    figures.figure_3(results, out / "figure_3.png")
    figures.figure_4(direct, out / "figure_4.png")
    figures.figure_7(results, out / "figure_7.png")
    figures.figure_8(results, out / "figure_8.png")
    figures.figure_9(direct, out / "figure_9.png")
    figures.frontier(results, out / "frontier.png")
    return claims
