"""Where a soaked run is killed, beyond the places of `traps`."""

import os

from distributed import traps
from sage_grpo.training.callbacks import Samples
from sage_grpo.training.drift_gauge import DriftGauge
from sage_grpo.training.trackers import JsonlTracker
from sage_grpo.training.trainer import Trainer

MORE = (
    ("resume", Trainer, "_resume"),
    ("sample", Samples, "write"),
    ("gauge", DriftGauge, "on_rollout"),
    ("log", JsonlTracker, "log"),
    ("file", os, "replace"),
)
ONLY_FIRST = (*traps.ONLY_FIRST, "log", "file")
AT_START = "resume"
PLACES = sorted({*traps.PLACES, *(place for place, *_ in MORE)} - {AT_START})


def places(mode):
    """What `traps.lay` sets besides its own."""
    if mode != "lora":
        return MORE
    from sage_grpo.weights.lora_bank import LoraBank

    return (*MORE, ("anchor", LoraBank, "save"))
