"""Halving in step, as `sage-grpo tune` does it, against Optuna's, which promotes each run as soon as it can.

Both choose among the nine learning rates of each seed from the curves on record, so no run is made. Optuna takes runs
one after the other, so it is asked in several orders: what it has seen so far decides what it prunes.
"""

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from research.run_log import RunLog
from research.settings import RATE, choice
from sage_grpo.errors import UserError
from sage_grpo.tune.halving import KEEP, cost, rungs, tail_mean

ORDERS = 20
Curves = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Row:
    """One way to search on one seed: the reward of its choice relative to the best, and its cost relative to the grid.

    `share` and `cost` are means over the orders; `worst_share` and `worst_cost` are of the worst order.
    """

    way: str
    seed: int
    share: float
    worst_share: float
    cost: float
    worst_cost: float


def in_step(curves: Curves, order: Sequence[str]) -> tuple[str, float]:
    return choice({name: list(curves[name]) for name in order}), cost(rungs(len(order), 1.0)) / len(order)


def optuna_pruner(name: str, curves: Curves, order: Sequence[str]) -> tuple[str, float]:
    """Return the choice of an Optuna pruner, and the iterations that it used as a share of those of all curves.

    Args:
        name: `SuccessiveHalvingPruner` or `HyperbandPruner`.
        curves: The reward of every iteration, for each candidate.
        order: The candidates in the order in which they are run.
    """
    try:
        import optuna  # noqa: PLC0415 - not needed by the package
    except ModuleNotFoundError as error:
        raise UserError("this comparison needs Optuna: pip install optuna==5.0.0") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    whole, spent = max(map(len, curves.values())), 0
    first = math.ceil(whole / KEEP ** (len(rungs(len(order), 1.0)) - 1))
    settings = {"min_resource": first, "reduction_factor": KEEP}
    settings |= {"max_resource": whole} if name == "HyperbandPruner" else {}
    pruner = getattr(optuna.pruners, name)(**settings)
    # Hyperband deals trials out by the name of the study
    study = optuna.create_study(study_name="halving", direction="maximize", pruner=pruner)
    for candidate in order:
        study.enqueue_trial({"candidate": candidate})

    def run(trial: Any) -> float:
        nonlocal spent
        curve = curves[trial.suggest_categorical("candidate", list(order))]
        for i in range(1, len(curve) + 1):
            spent += 1
            trial.report(tail_mean(curve[:i]), i)
            if trial.should_prune():
                raise optuna.TrialPruned
        return tail_mean(curve)

    study.optimize(run, n_trials=len(order))
    return study.best_trial.params["candidate"], spent / sum(map(len, curves.values()))


WAYS = {
    "in step": in_step,
    "Optuna, successive halving": lambda *given: optuna_pruner("SuccessiveHalvingPruner", *given),
    "Optuna, Hyperband": lambda *given: optuna_pruner("HyperbandPruner", *given),
}


def compare(log: Path, ways: Sequence[str] = tuple(WAYS), orders: int = ORDERS) -> list[Row]:
    """Return how each way to search does on each seed of the runs on record in `log`."""
    runs = [row for row in RunLog(log).read().values() if row["name"].startswith((RATE.key, "base"))]
    rows = []
    for seed in sorted({row["seed"] for row in runs}):
        of_seed = {row["name"]: row for row in runs if row["seed"] == seed}
        curves = {name: row["curves"]["reward/mean"] for name, row in of_seed.items()}
        ends = {name: row["evaluation"]["reward"] for name, row in of_seed.items()}
        shuffled = [random.Random(i).sample(sorted(curves), len(curves)) for i in range(orders)]
        for way in ways:
            found = [WAYS[way](curves, order) for order in shuffled]
            shares, costs = [ends[name] / max(ends.values()) for name, _ in found], [spent for _, spent in found]
            figures = (mean(shares), min(shares), mean(costs), max(costs))
            rows.append(Row(way, seed, *(round(figure, 4) for figure in figures)))
    return rows


def write(log: Path, out: Path) -> list[Row]:
    rows = compare(log)
    out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return rows
