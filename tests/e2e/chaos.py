"""Kill a lab run with SIGKILL at random moments until it is done; it must end bit-equal to an undisturbed one.

`python -m e2e.chaos --kills 10`
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from sage_grpo.distributed.checkpoint import load_checkpoint
from sage_grpo.training.trackers import read_metrics

RUN = [
    "train",
    "lab",
    "policy.prompts_per_iteration=2",
    "policy.num_generations=4",
    "policy.batch_size=8",
    "sampling.steps=5",
    "kl.anchor=moving",
    "kl.ref_model_sync_steps=3",
    "gauge.every=2",
    "run.save_every=2",
    "run.sample_every=5",
    "run.samples=2",
    "run.trackers=[]",
]


def start(folder: Path, iterations: int) -> subprocess.Popen:
    command = "import sys; from sage_grpo.cli import main; main()"
    arguments = [sys.executable, "-c", command, *RUN, f"run.out={folder}", f"run.iterations={iterations}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(folder: Path, iterations: int) -> float:
    began = time.monotonic()
    process = start(folder, iterations)
    _, errors = process.communicate()
    if process.returncode:
        raise SystemExit(f"the run failed: {errors.decode()}")
    return time.monotonic() - began


def differences(a: object, b: object, place: str = "state") -> list[str]:
    if isinstance(a, torch.Tensor):
        return [] if torch.equal(a, b) else [place]
    if isinstance(a, dict):
        return [x for k in {*a, *b} for x in differences(a.get(k), b.get(k), f"{place}/{k}")]
    if isinstance(a, list | tuple):
        return [x for i, (y, z) in enumerate(zip(a, b, strict=True)) for x in differences(y, z, f"{place}/{i}")]
    return [] if a == b else [place]


def chaos(kills: int, iterations: int, seed: int = 0) -> list[str]:
    """What differs at the end; an empty list is success."""
    rng, found = random.Random(seed), []
    with tempfile.TemporaryDirectory() as work:
        straight, broken = Path(work) / "straight", Path(work) / "broken"
        whole = finish(straight, iterations)
        done = 0
        while done < kills:
            process = start(broken, iterations)
            time.sleep(rng.uniform(0.3, 1.0) * whole)
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                done += 1
            process.wait()
            reached = len(read_metrics(broken / "metrics.jsonl")) if (broken / "metrics.jsonl").exists() else 0
            print(f"kill {done}/{kills}: {reached} iterations logged", flush=True)
            if reached >= iterations:  # done before all kills were spent: once more from the start
                finish(broken, iterations)
                found += compare(straight, broken, iterations)
                subprocess.run(["rm", "-rf", str(broken)], check=True)
        finish(broken, iterations)
        return found + compare(straight, broken, iterations)


def compare(straight: Path, broken: Path, iterations: int) -> list[str]:
    ends = [load_checkpoint(f / "checkpoints", f"step-{iterations:08d}") for f in (straight, broken)]
    curves = [
        [
            {k: v for k, v in row.items() if not k.startswith(("time", "seconds/", "speed/"))}
            for row in read_metrics(f / "metrics.jsonl")
        ]
        for f in (straight, broken)
    ]
    return differences(*ends) + ([] if curves[0] == curves[1] else ["metrics.jsonl"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=16)
    arguments = parser.parse_args()
    found = chaos(arguments.kills, arguments.iterations)
    if found:
        raise SystemExit(f"differs after {arguments.kills} kills: {found[:5]}")
    print(f"bit-equal after {arguments.kills} kills at random moments")


if __name__ == "__main__":
    main()
