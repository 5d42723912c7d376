"""What the processes of a soaked run tell, a line each; without torch, so that the first note comes before it."""

import json
import os
import time
from pathlib import Path


def note(file, what, **facts):
    """One line; several processes write to the same file."""
    launch, restart = (int(os.environ.get(name, "0")) for name in ("LAUNCH", "TORCHELASTIC_RESTART_COUNT"))
    who = {"rank": int(os.environ.get("RANK", "0")), "pid": os.getpid(), "start": [launch, restart]}
    with Path(file).open("a") as lines:
        lines.write(json.dumps({"what": what, "time": time.time(), **who, **facts}) + "\n")


def memory(pid):
    """Resident MB of a process."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def descendants(pid):
    """A process and all below it."""
    children = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for parent in found:  # it grows meanwhile
        found += children.get(parent, [])
    return found
