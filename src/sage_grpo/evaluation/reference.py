"""Make a reference for the monitor `kid`: Inception features of real pictures and of frames of real videos."""

from pathlib import Path
from typing import Any

import torch

from sage_grpo.evaluation.clips import Unreadable, open_video
from sage_grpo.progress import EmitProgress
from sage_grpo.rewards.errors import RewardError
from sage_grpo.rewards.frames import frame_numbers
from sage_grpo.rewards.kid import Inception, Reference


def make_reference(
    files: list[Path], target: Path, *, device: torch.device, frames: int = 4, megapixels: float, emit: EmitProgress
) -> dict[str, Any]:
    """Write the reference of the monitor `kid` to `target`: Inception features of pictures and of frames of videos.

    Return the number of `files` and of `frames` in the reference, and `unread`: the path and reason of each file that
    could not be read. Such files are left out.

    Args:
        files: The pictures and videos to read.
        target: The safetensors file to write.
        frames: Most frames to take from each video.
        megapixels: Most pixels, in millions, of all frames of one file. A larger file is left out.

    Raises:
        RewardError: `target` exists, or fewer than two files can be read.
    """
    if target.exists():
        raise RewardError(f"{target} is there already; choose another name or remove it")
    inception, features, owners, unread = Inception(), [], [], []
    for number, path in enumerate(files):
        emit(number, len(files), path.name)
        try:
            video = open_video(path, megapixels).frames
        except (Unreadable, OSError) as error:
            unread.append(f"{path}: {error}")
            continue
        features.append(inception.features(video[frame_numbers(len(video), frames)], device))
        owners += [number] * len(features[-1])
    if len(features) < 2:
        why = f"; {unread[0]}" if unread else ""
        raise RewardError(
            f"{len(features)} of {len(files)} files can be read; a reference needs two, better some hundreds{why}"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    Reference.of(torch.cat(features), torch.tensor(owners)).save(target)
    return {"files": len(features), "frames": len(owners), "unread": unread}
