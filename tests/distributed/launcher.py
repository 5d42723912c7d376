"""How the tests start several processes."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]


def environment(**more):
    """Tests first, then what the caller has: it may run another copy of the package. A crash tells where it was."""
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"} | more


def torchrun(processes, *arguments, restarts=0):
    options = ["--standalone", f"--nproc-per-node={processes}", f"--max-restarts={restarts}"]
    return [sys.executable, "-m", "torch.distributed.run", *options, "-m", *map(str, arguments)]


def workers(launcher):
    """Ids of the processes that torchrun started."""
    found = subprocess.run(["pgrep", "-P", str(launcher.pid)], capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]
