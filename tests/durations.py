"""How long tests take and why: `python tests/durations.py FILE...` shows what CI wrote as a table by file and by cause.

A thread looks at what the test is doing twenty times a second, in every worker of pytest-xdist.
"""

import faulthandler
import json
import os
import re
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

VARIABLE = "SAGE_GRPO_DURATIONS"  # where to write
EVERY = 0.05
CAUSES = {  # by a part of a file's path, the first that is found from the innermost call outwards
    "importlib._bootstrap": "imports",
    "/playwright/": "Chromium",
    "/ray/": "Ray",
    "/subprocess.py": "processes",
    "/forks/": "processes",
    "/distributed/launch.py": "processes",
    "/torch/": "networks",
}


def cause(names):
    """What a thread spends its time on; `names` are the files of its calls, the innermost first."""
    return next((found for part, found in CAUSES.items() if any(part in name for name in names)), "other")


class Sampler(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True, name="durations")
        self.main, self.seconds = threading.main_thread().ident, Counter()
        self.stacks = tempfile.TemporaryFile()  # noqa: SIM115 - for as long as the thread runs

    def files(self):
        """Return the files of the calls of the main thread.

        faulthandler walks the stacks in one go. Python code that walks the frames of another thread is interrupted by
        it, and once read a frame that was gone.
        """
        self.stacks.seek(0)
        self.stacks.truncate()
        faulthandler.dump_traceback(self.stacks)
        self.stacks.seek(0)
        _, _, stack = self.stacks.read().decode(errors="replace").partition(f"0x{self.main:016x} (most")
        return re.findall(r'^  File "(.*)", line', stack.partition("\n\n")[0], re.MULTILINE)

    def run(self):
        last = time.monotonic()
        while True:
            time.sleep(EVERY)
            now = time.monotonic()
            self.seconds[cause(self.files())] += now - last
            last = now

    def taken(self):
        found, self.seconds = self.seconds, Counter()
        return dict(found)


class Durations:
    """A plugin of pytest, for workers and for the process that collects what they report."""

    def __init__(self, path):
        self.path, self.started = Path(path), time.monotonic()
        self.tests, self.causes = Counter(), defaultdict(Counter)
        self.sampler = Sampler()
        self.sampler.start()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item, call):
        outcome = yield
        outcome.get_result().causes = self.sampler.taken()

    def pytest_runtest_logreport(self, report):
        self.tests[report.nodeid] += report.duration
        self.causes[report.nodeid.partition("::")[0]].update(getattr(report, "causes", {}))

    def pytest_sessionfinish(self):
        if "PYTEST_XDIST_WORKER" in os.environ:
            return
        files = defaultdict(lambda: {"seconds": 0.0, "tests": 0, "causes": {}})
        for name, seconds in self.tests.items():
            row = files[name.partition("::")[0]]
            row["seconds"], row["tests"] = row["seconds"] + seconds, row["tests"] + 1
        for name, seconds in self.causes.items():
            files[name]["causes"] = {k: round(v, 1) for k, v in sorted(seconds.items()) if v >= 0.1}
        for row in files.values():
            row["seconds"] = round(row["seconds"], 1)
        slow = {name: round(seconds, 1) for name, seconds in sorted(self.tests.items()) if seconds >= 1}
        found = {"wall": round(time.monotonic() - self.started), "files": dict(sorted(files.items())), "slow": slow}
        self.path.write_text(json.dumps(found, indent=1) + "\n")


def table(found):
    """Lines of Markdown: files by seconds, then the sum."""
    causes = sorted({name for row in found["files"].values() for name in row["causes"]})
    yield f"| file | tests | seconds | {' | '.join(causes)} |"
    yield "|---" * (3 + len(causes)) + "|"
    total, sums = 0.0, Counter()
    for name, row in sorted(found["files"].items(), key=lambda pair: -pair[1]["seconds"]):
        total, _ = total + row["seconds"], sums.update(row["causes"])
        if row["seconds"] >= 5:
            shares = " | ".join(f"{row['causes'].get(name, 0):.0f}" for name in causes)
            yield f"| {name} | {row['tests']} | {row['seconds']:.0f} | {shares} |"
    tests = sum(row["tests"] for row in found["files"].values())
    yield f"| all | {tests} | {total:.0f} | {' | '.join(f'{sums[name]:.0f}' for name in causes)} |"
    yield f"\nWall clock: {found['wall']} s"


def together(runs):
    """Return one record of runs that went on at the same time."""
    return {"wall": max(run["wall"] for run in runs), "files": {k: v for run in runs for k, v in run["files"].items()}}


if __name__ == "__main__":
    print("\n".join(table(together([json.loads(Path(name).read_text()) for name in sys.argv[1:]]))))
