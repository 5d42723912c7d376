"""A reference for `kid`: features of a folder's pictures and of frames of its videos."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sage_grpo.rewards.errors import RewardError
from sage_grpo.rewards.frames import frame_numbers
from sage_grpo.rewards.kid import Inception, Reference

PICTURES = {".png", ".jpg", ".jpeg", ".webp", ".bmp"}
VIDEOS = {".mp4", ".mov", ".webm", ".mkv", ".avi"}


def find_files(source: Path) -> list[Path]:
    if not source.is_dir():
        raise RewardError(f"{source} is not a folder")
    files = sorted(path for path in source.rglob("*") if path.suffix.lower() in PICTURES | VIDEOS)
    if len(files) < 2:
        raise RewardError(f"{source} has {len(files)} pictures or videos; a reference needs two, better some hundreds")
    return files


def make_reference(
    files: list[Path],
    target: Path,
    *,
    read_video: Callable[[Path], Any],
    device: torch.device,
    frames: int = 4,
    tell: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """Write `target`; a file that cannot be read is told of and left out. Returns what it holds."""
    if target.exists():
        raise RewardError(f"{target} is there already; choose another name or remove it")
    if frames < 1:
        raise RewardError(f"{frames} frames of a video; at least one is needed")
    inception, features, owners, unread = Inception(), [], [], []
    for number, path in enumerate(files):
        try:
            found = inception.features(pictures_of(path, frames, read_video), device)
        except (OSError, ValueError) as error:  # PyAV's errors are of these too
            unread.append(f"{path}: {error}")
        else:
            features.append(found)
            owners += [number] * len(found)
        tell()
    if len(features) < 2:
        raise RewardError(f"only {len(features)} of {len(files)} files can be read; {unread[0]}")
    reference = Reference.of(torch.cat(features), torch.tensor(owners))
    target.parent.mkdir(parents=True, exist_ok=True)
    reference.save(target)
    return {"files": len(features), "frames": len(owners), "unread": unread}


def pictures_of(path: Path, frames: int, read_video: Callable[[Path], Any]) -> Tensor:
    """uint8 (N, H, W, 3)"""
    if path.suffix.lower() in PICTURES:
        return torch.from_numpy(np.array(Image.open(path).convert("RGB")))[None]
    video = torch.from_numpy(np.asarray(read_video(path)))
    return video[frame_numbers(len(video), frames)]
