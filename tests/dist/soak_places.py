"""Where a soaked run is killed, beyond the places of `traps`."""

import os

from dist import traps
from sage_grpo.tracking.callbacks import Samples
from sage_grpo.tracking.gauge import DriftGauge
from sage_grpo.tracking.metrics import JsonlTracker
from sage_grpo.trainer import Trainer

MORE = (
    ("resume", Trainer, "_resume"), ("sample", Samples, "write"), ("gauge", DriftGauge, "on_rollout"),
    ("log", JsonlTracker, "log"), ("file", os, "replace"),
)  # fmt: skip
ONLY_FIRST = (*traps.ONLY_FIRST, "log", "file")
AT_START = "resume"
PLACES = sorted({*traps.PLACES, *(place for place, *_ in MORE)} - {AT_START})


def places(mode):
    """What `traps.lay` sets besides its own."""
    if mode != "lora":
        return MORE
    from sage_grpo.tuning.lora import LoraBank

    return (*MORE, ("anchor", LoraBank, "save"))
