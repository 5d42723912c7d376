"""Calibrations: the ratio of planned to measured seconds of a real run, kept in a file for later plans."""

import json
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import Field, ValidationError

from sage_grpo.config import ConfigError
from sage_grpo.config.algorithm import Settings
from sage_grpo.config.yaml_text import YamlError, read_yaml
from sage_grpo.files import atomic_write


class Calibration(Settings):
    rollout: float = Field(1.0, gt=0, description="seconds planned over seconds measured, of rollout and decoding")
    update: float = Field(1.0, gt=0, description="the same for anchor and training passes")
    score_seconds: float | None = Field(None, ge=0, description="seconds that training waits for a video's scores")
    gpu: str | None = Field(None, description="on which it was measured")
    measured: str | None = Field(None, description="run that was measured")

    @property
    def calibrated(self) -> bool:
        """Whether any value differs from its default, as it does once a run was measured."""
        return self != Calibration()


def read_calibration(path: Path) -> Calibration:
    try:
        return Calibration.model_validate(read_yaml(path.read_text()))
    except FileNotFoundError:
        raise ConfigError(
            f"there is no calibration {path}; write one with `sage-grpo plan RECIPE --measured RUN`"
        ) from None
    except (ValidationError, YamlError, UnicodeDecodeError) as error:
        known = ", ".join(Calibration.model_fields)
        raise ConfigError(f"{path} is not a calibration: {error}; it has the keys {known}") from None


def write_calibration(path: Path, calibration: Calibration) -> None:
    lines = ["# Written by `sage-grpo plan --measured`; edit what you know better."]
    for name, field in Calibration.model_fields.items():
        value = getattr(calibration, name)
        text = f"{value:.4g}" if isinstance(value, float) else json.dumps(value)  # a name may hold # or :
        lines.append(f"{name}: {text}  # {field.description}")
    atomic_write(path, ("\n".join(lines) + "\n").encode())


def calibrate(rows: list[dict[str, Any]], planned: dict[str, float], videos: int, gpu: str, run: str) -> Calibration:
    """Return the calibration that follows from the log of a run and its uncalibrated plan.

    The first iteration warms up, and is left out.

    Args:
        rows: The log, one row per iteration.
        planned: Planned seconds of an iteration, by phase.
        videos: Videos of one replica in an iteration.
        gpu: Name of the GPU that the run was measured on.
        run: Name of the run, for messages and the file.
    """
    timed = [row for row in rows if row.get("seconds/update") is not None][1:]
    if not timed:
        raise ConfigError(f"{run} has no timed iteration after its first; let it run for two or more")

    def usual(name: str) -> float:
        return float(median(row.get(f"seconds/{name}") or 0.0 for row in timed))

    rollout = planned["rollout"] + planned["decode"]
    return Calibration(
        rollout=rollout / usual("rollout"),
        update=(planned["anchor"] + planned["old policy"] + planned["train"]) / usual("update"),
        score_seconds=usual("score") / videos,
        gpu=gpu,
        measured=run,
    )
