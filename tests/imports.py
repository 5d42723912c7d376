"""Measure what share of processor time goes into imports, in every Python process of a run.

A `.pth` file of the environment starts it where SAGE_GRPO_IMPORTS names a file: `.ci/run` writes one. Each process adds
a line to that file when it ends; one that is killed adds none. `python tests/imports.py FILE` prints the sum.
"""

import atexit
import json
import os
import sys
import threading
import time

VARIABLE = "SAGE_GRPO_IMPORTS"
STATE = threading.local()
SPENT = {"imports": 0.0, "before": 0.0}


def measure():
    """Count the processor seconds of every import that is not inside another, from here on."""
    bootstrap = sys.modules["_frozen_importlib"]
    load = bootstrap._find_and_load
    if load.__name__ == "timed":  # a `.pth` file is read twice where lib64 is a link to lib
        return

    def timed(name, import_):
        if getattr(STATE, "inside", False):
            return load(name, import_)
        STATE.inside, began = True, time.thread_time()
        try:
            return load(name, import_)
        finally:
            STATE.inside = False
            SPENT["imports"] += time.thread_time() - began

    bootstrap._find_and_load = timed
    os.register_at_fork(after_in_child=forget)
    atexit.register(write)


def forget():
    """A fork has spent nothing yet."""
    SPENT.update(imports=0.0, before=time.process_time())


def write():
    row = {"command": sys.argv[:3], "cpu": time.process_time() - SPENT["before"], "imports": SPENT["imports"]}
    with open(os.environ[VARIABLE], "a") as file:
        file.write(json.dumps(row) + "\n")


def summary(path):
    with open(path) as file:
        rows = [json.loads(line) for line in file]
    cpu, imports = (sum(row[key] for row in rows) for key in ("cpu", "imports"))
    heavy = sum(row["imports"] > 2 for row in rows)
    share = f"imports take {imports:.0f} of {cpu:.0f} processor seconds ({imports / cpu:.0%})"
    return f"{len(rows)} processes, {heavy} of them import for more than 2 s; {share}"


if __name__ == "__main__":
    print(summary(sys.argv[1]))
