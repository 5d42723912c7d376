"""Chaos, resume and two-process tests with forks and with real starts: every file of end weights must have equal bits.

python -m forks.both_ways
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

TESTS = Path(__file__).parents[1]
NAMED = (
    "distributed/test_chaos.py",
    "core/test_resume.py",
    "distributed/test_processes.py::test_every_layout_equals_one_process",
    "distributed/test_objectives.py",
)


def equal(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        # nothing seeds torch's own random state in these runs: it differs between any two starts
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one if key != "torch_rng")
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


def run(folder, forks):
    """Files of weights by their place below `folder`, and the seconds that the tests took."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not sweep", f"--basetemp={folder}"]
    began = time.monotonic()
    settings = os.environ | {"SAGE_GRPO_FORKS": str(int(forks))}
    subprocess.run([*command, *(str(TESTS / name) for name in NAMED)], env=settings, check=True)
    return {path.relative_to(folder): path for path in folder.rglob("*.pt")}, time.monotonic() - began


def main():
    with tempfile.TemporaryDirectory() as place:
        (forked, short), (real, long) = (run(Path(place, str(forks)), forks) for forks in (True, False))
        different = set(forked) ^ set(real)
        for name in sorted(set(forked) & set(real)):
            ends = [torch.load(paths[name], weights_only=True) for paths in (forked, real)]
            if not equal(*(end.get("weights", end) for end in ends)):  # what else is there begins at the last restart
                different.add(name)
    print(f"{len(forked)} files of weights, {len(different)} differ; {short:.0f} s with forks, {long:.0f} s without")
    for name in sorted(different):
        print(f"  {name}")
    return 1 if different or not forked else 0


if __name__ == "__main__":
    sys.exit(main())
