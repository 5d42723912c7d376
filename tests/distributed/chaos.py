"""Kill processes of a run at random places; torchrun starts them again, and the end must be that of an unbroken run.

python -m distributed.chaos --kills 30
"""

import argparse
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch

from distributed.launcher import environment, torchrun
from distributed.traps import ONLY_FIRST, PLACES, order

CASE = "shapes-full"


def newest(folder):
    return max((path.name for path in folder.glob("step-*")), default="")


def until(done, launcher, seconds=300):
    """Whether it came true before the run ended."""
    end = time.monotonic() + seconds
    while launcher.poll() is None and time.monotonic() < end:
        if done():
            return True
        time.sleep(0.02)
    return False


def run(folder, kills, iterations, rng):
    """Weights of an unbroken and of a killed run, and how many kills met a living process in which place."""
    command = [CASE + f":{iterations}"]
    settings = {"SAVE_EVERY": "1", "TRAPS": str(folder)}
    whole = torchrun(2, "distributed.worker", folder, *command)
    subprocess.run(whole, env=environment(SUFFIX="whole", SAVE_EVERY="1"), check=True, capture_output=True)
    log = (folder / "log.txt").open("w+")  # a pipe that nobody reads would fill up and stop the launcher
    launcher = subprocess.Popen(
        torchrun(2, "distributed.worker", folder, *command, restarts=kills + 5),
        env=environment(SUFFIX="killed", **settings),
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    checkpoints, done, whole_ones = folder / f"{CASE}-killed" / "checkpoints", [], []
    for _ in range(kills):
        place = rng.choice(list(PLACES))
        order(folder, place, 0 if place in ONLY_FIRST else rng.randrange(2))
        if not until(lambda: not (folder / "order").exists(), launcher):
            break
        done.append(place)
        last = newest(checkpoints)
        whole_ones.append(last)
        print(f"kill {len(done)} of {kills} in {place}, newest checkpoint {last or 'none'}", flush=True)
        until(lambda last=last: newest(checkpoints) > last, launcher)  # so that it ends some day
    code = launcher.wait(timeout=900)
    assert code == 0, (folder / "log.txt").read_text()[-3000:]
    ends = [torch.load(folder / f"{CASE}-{name}.pt", weights_only=True)["weights"] for name in ("whole", "killed")]
    resumed = re.findall(r"resumed from (step-\d+)", (folder / "log.txt").read_text())
    # From the end: the first restarts may have found none yet, or one that was renamed after we looked.
    assert len(resumed) >= sum(map(bool, whole_ones))
    for seen, taken in zip(reversed(whole_ones), reversed(resumed), strict=False):
        assert taken >= seen, f"resumed from {taken}, though {seen} was there"
    return *ends, Counter(done)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        whole, killed, done = run(Path(folder), options.kills, 2 * options.kills + 6, random.Random(options.seed))
    same = all(torch.equal(whole[name], killed[name]) for name in whole)
    places = ", ".join(f"{count} in {place}" for place, count in sorted(done.items()))
    print(f"{done.total()} kills ({places}), all resumed; end weights {'bit-equal' if same else 'DIFFERENT'}")
    return 0 if same and done.total() == options.kills else 1


if __name__ == "__main__":
    sys.exit(main())
