"""A first run of a recipe on a new machine: checks, a test of attention, real iterations, and a calibrated plan.

All results are in one file, which a user can send to the developers.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from sage_grpo.config import ConfigError, RecipeConfig, dump_recipe
from sage_grpo.distributed.device import HOST, choose_device
from sage_grpo.distributed.launch import ProcessFailure, launch
from sage_grpo.files import atomic_write
from sage_grpo.preflight.first_run import worker
from sage_grpo.preflight.first_run.attention import attention_report, fastest
from sage_grpo.preflight.first_run.check import Check
from sage_grpo.preflight.first_run.machine import device_name, files_checks, machine_checks
from sage_grpo.preflight.plan.calibration import Calibration, calibrate, write_calibration
from sage_grpo.preflight.plan.estimate import Plan, estimate
from sage_grpo.preflight.plan.hardware import find_gpu, guess_gpu
from sage_grpo.preflight.plan.show import disk
from sage_grpo.progress import Emit
from sage_grpo.registry import load_trusted_recipe
from sage_grpo.runs.folder import RunFolder
from sage_grpo.runs.redact import clean_recipe, clean_text
from sage_grpo.training.callbacks import PHASES
from sage_grpo.training.environment import describe_environment
from sage_grpo.training.trackers import read_metrics

REPORT, CALIBRATION = "first-run.json", "calibration.yaml"


def first_run(
    source: str | Path, overrides: Sequence[str], folder: Path, count: int, gpu: str | None, emit: Emit = print
) -> dict[str, Any]:
    """Check the machine, run `count` iterations of a recipe, and return the report, which is also written to `folder`.

    If a step fails, its error is raised. The report in `folder` then has the results so far and the error.

    Args:
        source: The recipe, as in `load_recipe`.
        overrides: Settings that replace those of the recipe, such as `policy.clip=1e-5`.
        folder: New folder for the report and the run.
        count: Number of iterations.
        gpu: Name of the GPU that the plan assumes; None to guess it from the name of the device.
        emit: Called with a sentence at each step.
    """
    config = recipe_for(source, overrides, folder, count)
    if (folder / REPORT).exists():
        raise ConfigError(f"{folder} holds a first run already; choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    device = choose_device(config.tuning.device)
    kind = gpu or guess_gpu(device_name(device)) or "h100-80g"
    report: dict[str, Any] = {
        "recipe": clean_recipe(dump_recipe(config)),
        "environment": describe_environment(),
        "gpu": kind,
        "error": None,
    }
    try:
        emit("1 of 4: looking for files")
        passed(files_checks(config), report)
        emit("2 of 4: planning, and looking at the machine")
        plan = estimate(config, find_gpu(kind), Calibration())
        passed(machine_checks(config, plan.memory, sum(disk(plan).values())), report)
        emit("3 of 4: attention, its bits and its seconds")
        report["attention"] = attention_report(device, plan.attention)
        report["attention_advice"] = fastest(report["attention"])
        run_iterations(config, folder, emit)
        report["devices"] = json.loads(RunFolder(folder / "run").speeds.read_text())
        report |= measured(config, folder, plan)
        if gpu or device != HOST:  # of the host there is no plan to calibrate
            report["calibration"] = calibration(config, folder, plan, kind)
    except BaseException as error:
        known = isinstance(error, ConfigError | ProcessFailure)
        report["error"] = clean_text(str(error) if known else f"{type(error).__name__}: {error}")
        raise
    finally:
        atomic_write(folder / REPORT, json.dumps(report, indent=1).encode())
    return report


def passed(checks: Iterable[Check], report: dict[str, Any]) -> None:
    """Add the results of all checks to the report, then raise one ConfigError about all that failed."""
    done = list(checks)
    report["checks"] = report.get("checks", []) + [asdict(check) for check in done]
    if wrong := [f"{check.name}: {check.found}; {check.fix}" for check in done if not check.ok]:
        raise ConfigError("\n".join(wrong))


def recipe_for(source: str | Path, overrides: Sequence[str], folder: Path, count: int) -> RecipeConfig:
    """Return the recipe, changed to run `count` iterations in `folder`.

    The short run also saves a checkpoint and makes sample videos, so that both are tried.
    """
    short = [f"run.iterations={count}", f"run.out={folder / 'run'}", f"run.save_every={count}", "run.resume=never"]
    short += [f"run.sample_every={count}", "run.trackers=[]", "run.check_gpus=true"]
    return load_trusted_recipe(source, [*overrides, *short])


def run_iterations(config: RecipeConfig, folder: Path, emit: Emit) -> None:
    (folder / worker.RECIPE).write_text(dump_recipe(config))
    log, total = RunFolder(folder / "run").log, config.run.iterations

    def look() -> None:
        rows = read_metrics(log) if log.exists() else []
        seconds = sum(row.get(f"seconds/{phase}") or 0.0 for row in rows for phase in PHASES)
        left = f", {seconds / len(rows) * (total - len(rows)):.0f} s left" if rows else ""
        emit(f"4 of 4: iteration {min(len(rows) + 1, total)} of {total}{left}")

    launch(config.parallel.processes, worker.__name__, [str(folder)], folder, look)


def measured(config: RecipeConfig, folder: Path, plan: Plan) -> dict[str, Any]:
    """Return the measured and planned seconds per phase and bytes of peak memory, with a summary of the iterations.

    Seconds are medians over the iterations after the first, which warms up. The summary has the deviation of replay,
    the reward of each iteration and the number of skipped updates.
    """
    rows = read_metrics(RunFolder(folder / "run").log)
    later = rows[1:] or rows  # the first one warms up
    seconds = {phase: median(row.get(f"seconds/{phase}") or 0.0 for row in later) for phase in PHASES}
    planned = {
        "rollout": plan.seconds["rollout"] + plan.seconds["decode"],
        "score": plan.seconds["score"],
        "update": plan.seconds["anchor"] + plan.seconds["old policy"] + plan.seconds["train"],
    }
    peaks = [row["speed/peak_memory"] for row in rows if row.get("speed/peak_memory")]
    return {
        "iterations": len(rows),
        "replay_deviation": rows[0].get("replay_deviation"),
        "seconds": {phase: {"measured": seconds[phase], "planned": planned[phase]} for phase in PHASES},
        "memory": {"planned": plan.memory.peak, "measured": max(peaks, default=None)},
        "reward": [row.get("reward/mean") for row in rows],
        "skipped_updates": sum(row.get("skipped_updates") or 0.0 for row in rows),
    }


def calibration(config: RecipeConfig, folder: Path, plan: Plan, kind: str) -> Mapping[str, Any]:
    rows = read_metrics(RunFolder(folder / "run").log)
    fitted = calibrate(rows, plan.seconds, config.rollouts // config.parallel.replicas, kind, "first run")
    write_calibration(folder / CALIBRATION, fitted)
    return fitted.model_dump()
