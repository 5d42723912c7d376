"""`python -m research reproduce`: run all experiments, judge the paper's claims, and draw the figures."""

import json
import math
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from research import figures
from research.claims import ALL_SEEDS, LOOKS, Claim, Results, as_markdown, judge
from research.direct import measure_directly
from research.grid import Base, Job, Run, experiments, run_grid
from sage_grpo.files import atomic_write


def reproduce(
    out: Path,
    *,
    seeds: int,
    iterations: int,
    samples: int,
    workers: int | None = None,
    console: Console | None = None,
) -> list[Claim]:
    """Check the paper's claims, and return each with its verdict.

    Results, results.json, claims.md and figures are written into `out`. If the process is killed, call the function
    again: it continues.

    First, a quarter of the seeds and rollouts is run. Claims that are then undecided get half of them, and at last all.
    The experiments of `ALL_SEEDS` run on all seeds from the start.
    """
    console = console or Console()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    console.print("measuring the base model directly", highlight=False)
    direct = measure_directly(out, {}, workers, console)
    grid = experiments(direct["matched"])
    open_ones: Sequence[str] = list(grid)
    asked: dict[tuple[str, int], None] = {}
    again: Counter[str] = Counter()  # looks at rollouts beyond the first
    for share in LOOKS:
        asked |= dict.fromkeys((name, seed) for seed in range(math.ceil(share * seeds)) for name in open_ones)
        asked |= dict.fromkeys((name, seed) for name in ALL_SEEDS if name in open_ones for seed in range(seeds))
        jobs: list[Run] = [Job(name, grid[name], seed, iterations, samples, out) for name, seed in asked]
        base, *runs = run_grid([Base(samples), *jobs], out, workers, console)
        results = Results(runs, base)
        claims = judge(results, direct)
        undecided = [claim for claim in claims if claim.verdict == "undecided"]
        if not undecided or share == LOOKS[-1]:
            break
        open_ones = list(dict.fromkeys(name for claim in undecided for name in claim.rests_on))
        more = {name for claim in undecided for name in claim.measured_on}
        console.print(
            f"more seeds of {len(open_ones)} experiments and rollouts of {len(more)} kernels, for claims that are open",
            highlight=False,
        )
        again.update(more)
        direct = measure_directly(out, again, workers, console)
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
