"""What torchrun does where it never starts a process again: it starts the ranks, and ends all of them when one fails.

Its agents spend seconds on meeting each other. Where restarts or several nodes are wanted, torchrun itself runs.
"""

import os
import re
import signal
import subprocess
import sys
import time

import torch

KNOWN = re.compile(r"--(standalone|max-restarts=0|nproc-per-node=(\d+))$")
GRACE = 30.0  # seconds, as torchrun's


def asked(arguments):
    """How many processes, and their words after `python`; None where torchrun itself is needed."""
    if arguments[:2] == ["-m", "torch.distributed.run"]:
        words = arguments[2:]
    elif arguments and os.path.basename(arguments[0]) == "torchrun":
        words = arguments[1:]
    else:
        return None
    options = words[: words.index("-m")] if "-m" in words else []
    found = [KNOWN.match(option) for option in options]
    counts = [int(match[2]) for match in found if match and match[2]]
    if "--standalone" not in options or not all(found) or len(counts) != 1:
        return None
    return counts[0], words[len(options) :]


def run(processes, words):
    """Exit code of the ranks together."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    shared |= {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes), "TORCHELASTIC_RESTART_COUNT": "0"}
    ranks = [
        subprocess.Popen([sys.executable, *words], env=os.environ | shared | {"RANK": str(i), "LOCAL_RANK": str(i)})
        for i in range(processes)
    ]

    def end_all(*_):
        for rank in ranks:
            if rank.poll() is None:
                rank.terminate()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end_all)
    codes = [None]
    while None in codes and not any(codes):
        time.sleep(0.02)
        codes = [rank.poll() for rank in ranks]
    failed = [(i, code) for i, code in enumerate(codes) if code]
    end_all()
    limit = time.monotonic() + GRACE
    for rank in ranks:
        try:
            rank.wait(max(limit - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            rank.kill()
    for i, code in failed:
        print(f"rank {i} ended first, with exit code {code}", file=sys.stderr)
    return 1 if failed else 0
