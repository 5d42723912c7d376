"""A process that kills itself at a named place, once, when it is told to: the orders lie in a file."""

import functools
import json
import os
import signal

import torch

from sage_grpo.core.copy_bank import CopyBank
from sage_grpo.core.loop import Loop
from sage_grpo.distributed.storage import Storage

PLACES = {
    "rollout": (Loop, "rollout"),
    "reward": (Loop, "score"),
    "backward": (torch.Tensor, "backward"),
    "optimizer": (torch.optim.AdamW, "step"),
    "anchor": (CopyBank, "save"),
    "save": (Storage, "digest"),  # the tensors are written, the manifest is not; training goes on meanwhile
    "rename": (Storage, "publish"),
    "retention": (Storage, "remove"),
}
ONLY_FIRST = ("rename", "retention")  # what the first process does for all


def order(folder, place, rank):
    part = folder / ".order"
    part.write_text(json.dumps([place, rank]))
    part.rename(folder / "order")


def told(file):
    """The order that stands; it may be carried out, or withdrawn, while we look."""
    try:
        return json.loads(file.read_text())
    except FileNotFoundError:
        return None


def lay(folder, more=()):
    """Set the traps in this process, and `more` of them: place, owner and name of what is called there."""
    rank, file = int(os.environ.get("RANK", "0")), folder / "order"

    def trapped(function, place):
        @functools.wraps(function)
        def wrapper(*inputs, **more):
            if told(file) == [place, rank]:
                file.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*inputs, **more)

        return wrapper

    for place, owner, name in [*((place, *what) for place, what in PLACES.items()), *more]:
        setattr(owner, name, trapped(getattr(owner, name), place))
