"""Kill processes of a run at random moments; torchrun starts them again, and the end must be that of an unbroken run.

python -m dist.chaos --kills 30
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

from dist.launcher import environment, torchrun, workers

START = 5.0  # seconds until the processes have met


def command(folder, case, restarts):
    return torchrun(2, "dist.worker", folder, case, restarts=restarts)


def run(folder, kills, iterations, rng):
    """Weights of an unbroken and of a killed run, and how many kills met a living process."""
    case = f"shapes-full:{iterations}"
    always = {"SAVE_EVERY": "1"}
    subprocess.run(command(folder, case, 0), env=environment(SUFFIX="whole", **always), check=True, capture_output=True)
    log = (folder / "log.txt").open("w+")  # a pipe that nobody reads would fill up and stop the launcher
    launcher = subprocess.Popen(
        command(folder, case, kills + 5),
        env=environment(SUFFIX="killed", **always),
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    done, checkpoints = 0, folder / "shapes-full-killed" / "checkpoints"
    while done < kills and launcher.poll() is None:
        seen = len(list(checkpoints.glob("step-*")))
        newest = max(checkpoints.glob("step-*"), default=None)
        while launcher.poll() is None and max(checkpoints.glob("step-*"), default=None) == newest and (done or seen):
            time.sleep(0.05)  # let it get a checkpoint further, so that it ends some day
        time.sleep(START * (not done) + rng.random() * 2.0)
        alive = workers(launcher)
        if alive and launcher.poll() is None:
            os.kill(rng.choice(alive), signal.SIGKILL)
            done += 1
            print(f"kill {done} of {kills}, newest checkpoint {newest.name if newest else 'none'}", flush=True)
    code = launcher.wait(timeout=600)
    assert code == 0, (folder / "log.txt").read_text()[-3000:]
    ends = [torch.load(folder / f"shapes-full-{name}.pt", weights_only=True)["weights"] for name in ("whole", "killed")]
    return *ends, done


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        whole, killed, done = run(Path(folder), options.kills, 2 * options.kills + 6, random.Random(options.seed))
    same = all(torch.equal(whole[name], killed[name]) for name in whole)
    print(f"{done} kills; end weights {'bit-equal' if same else 'DIFFERENT'}")
    return 0 if same and done == options.kills else 1


if __name__ == "__main__":
    sys.exit(main())
