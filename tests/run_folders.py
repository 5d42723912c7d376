"""Run folders made by hand, with known numbers: what `sage-grpo train` leaves, without the training."""

import json
import math
from datetime import UTC, datetime

import numpy as np

from sage_grpo.config import dump_recipe, load_recipe

BEGAN = 1_700_000_000.0
SECONDS = 20.0  # an iteration
SERIES = ("gradient_raw", "gradient_equalized", "log_ratio_rms", "clip_frac")


def stamp(seconds):
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def make_rows(count, timesteps=4, seed=0, **columns):
    """Rows of a log; a column is given as a function of the step and overrides what is drawn."""
    rng = np.random.default_rng(seed)
    rows = []
    for step in range(1, count + 1):
        row = {
            "step": step,
            "time": BEGAN + SECONDS * step,
            "reward/mean": step / count + rng.normal(),
            "reward/std": 1.0,
            "reward/failed": 0.0,
            "reward/VQ": rng.normal(),
            "reward/TA": rng.normal(),
            "zero_std_ratio": 0.0,
            "kl_weight": 0.5,
            "kl/penalty": 1e-5,
            "kl/anchor": rng.uniform(1e-6, 1e-4),
            "kl/old": rng.uniform(1e-6, 1e-4),
            "clip_frac": rng.uniform(),
            "ratio_mean": 1.0,
            "grad_norm": rng.uniform(1, 2),
            "seconds/rollout": 8.0,
            "seconds/update": 10.0,
            "skipped_updates": 0.0,
        }
        if step % 5 == 1:
            row |= {
                "drift/base_error": 1.0,
                "drift/diversity": 1.0,
                "drift/motion": 1.0,
                "drift/saturation": 0.0,
                "drift/exposure": 0.0,
                "drift/kl_initial": 1e-4 * step,
                "drift/alarms": 0.0,
            }
        for series in SERIES:
            trained = rng.permutation(timesteps)[: max(timesteps * 3 // 4, 1)]
            row |= {f"steps/{series}/{t:03d}": rng.uniform(0.1, 1) * (t + 1) for t in sorted(trained)}
        row |= {name.replace("__", "/"): make(step) for name, make in columns.items()}
        rows.append({k: v for k, v in row.items() if v is not None})
    return rows


def as_lines(rows):
    """As the tracker writes them: what is not finite is null."""
    shown = ({k: v if not isinstance(v, float) or math.isfinite(v) else None for k, v in row.items()} for row in rows)
    return "".join(json.dumps(row) + "\n" for row in shown)


def make_run(folder, rows=None, *overrides, samples=(0, 10, 20), prompts=("a cat", "a dog"), end=True, size=40):
    """The folder of a run of the recipe `lab`; a sample video is `size` bytes that tell its place."""
    rows = make_rows(20) if rows is None else rows
    settings = [f"run.out={folder}", f"run.iterations={max(len(rows), 1)}", "run.sample_every=10", *overrides]
    config = load_recipe("lab", settings)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(dump_recipe(config))
    (folder / "metrics.jsonl").write_text(as_lines(rows))
    facts = {
        "sage_grpo": "0.1.0",
        "python": "3.11",
        "packages": {"torch": "2.13.0"},
        "devices": ["cpu"],
        "git_commit": "c0ffee",
        "command": ["sage-grpo", "train", "lab"],
        "started": stamp(BEGAN),
    }
    (folder / "environment.json").write_text(json.dumps(facts))
    if end:
        told = {"iteration": len(rows), "stop_reason": None, "error": None, "time": BEGAN + SECONDS * len(rows)}
        (folder / "end.json").write_text(json.dumps(told))
    for iteration in samples:
        place = folder / "samples" / f"{iteration:06d}"
        place.mkdir(parents=True)
        asked = [{"prompt": prompt, "seed": i} for i, prompt in enumerate(prompts)]
        (place / "prompts.json").write_text(json.dumps(asked))
        for i in range(len(prompts)):
            (place / f"{i:02d}.mp4").write_bytes(f"{folder.name} {iteration} {i} ".encode().ljust(size, b"."))
    return folder
