"""Conversion of a video with sound to ImageBind's inputs: clips of frames, and spectrograms of two seconds of sound."""

import math
import warnings
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import ASTFeatureExtractor

from sage_grpo.rewards.frames import Unscorable
from sage_grpo.rewards.imagebind.network import BANDS, SIDE, STEPS
from sage_grpo.rewards.sound import window_starts
from sage_grpo.rewards.videoalign.frames import MEAN, STD

SECONDS, PICTURE_CLIPS, SOUND_CLIPS = 2, 5, 3
RATE = 16_000  # samples a second
SHORTEST = 400  # samples of one step of a spectrogram
NARROWEST = 200  # the longer side over the shorter: beyond it a frame would be enlarged to millions of pixels


@cache
def extractor() -> Any:
    """Return the function that turns a sound into a spectrogram, as in the original.

    It is Kaldi's filter bank in logarithms, padded with zeros and then normalised.
    """
    with warnings.catch_warnings():  # the lowest bands fall between two frequencies and are empty: Kaldi's are, too
        warnings.simplefilter("ignore", UserWarning)
        return ASTFeatureExtractor(  # divides by twice its `std`
            sampling_rate=RATE, num_mel_bins=BANDS, max_length=STEPS, mean=-4.268, std=9.138 / 2
        )


def frame_pairs(frames: int, frame_rate: float) -> list[tuple[int, int]]:
    """Return the indices of the first and last frame of each clip of two seconds that ImageBind gets of a video.

    There are five clips spread over the video, or one if the video is no longer than a clip.
    """
    length = SECONDS * frame_rate
    room = max(frames - length, 0)
    starts = [room * i / (PICTURE_CLIPS - 1) for i in range(PICTURE_CLIPS)] if room else [0.0]
    firsts = [min(math.ceil(start), frames - 1) for start in starts]
    lasts = [min(math.ceil(start + length), frames) - 1 for start in starts]
    return [(first, max(first, last)) for first, last in zip(firsts, lasts, strict=True)]


def pictures(frames_FHWC: Tensor, frame_rate: float) -> Tensor:
    """Return the clips (N, 3, FRAMES, SIDE, SIDE) that ImageBind gets of a video, whose frames are uint8 (F, H, W, 3).

    Each of the `frame_pairs` gives three square clips, cut at both ends and in the middle of the longer side. Square
    frames give one clip per pair.
    """
    height, width = frames_FHWC.shape[1:3]
    if max(height, width) > NARROWEST * min(height, width):
        raise Unscorable(f"its frames of {height}×{width} are too narrow: at most {NARROWEST} to 1")
    pairs = torch.tensor(frame_pairs(len(frames_FHWC), frame_rate))
    scale = SIDE / min(height, width)
    size = [SIDE if side == min(height, width) else math.floor(side * scale) for side in (height, width)]
    x = frames_FHWC[pairs.flatten()].permute(0, 3, 1, 2).float() / 255
    x = F.interpolate(x, size, mode="bilinear", align_corners=False)  # not smoothed before, as in the original
    mean, std = (torch.tensor(values, device=x.device)[:, None, None] for values in (MEAN, STD))
    room = max(size) - SIDE
    along = -2 if size[0] > size[1] else -1
    edges = [0, math.ceil(room / 2), room] if room else [0]  # a square has one
    cuts = torch.stack([((x - mean) / std).narrow(along, edge, SIDE) for edge in edges], 1)
    return cuts.view(*pairs.shape, *cuts.shape[1:]).permute(0, 2, 3, 1, 4, 5).flatten(0, 1)  # pairs and cuts are clips


def spectrograms(wave: Tensor) -> Tensor:
    """Return the spectrograms (N, 1, BANDS, STEPS) that ImageBind gets of a sound (samples,) at RATE samples a second.

    There are three, of two seconds each, spread over the sound, or one if the sound is no longer than two seconds.
    """
    if len(wave) < SHORTEST:
        raise Unscorable(f"its sound has {len(wave)} samples of {RATE} a second; {SHORTEST} are needed")
    length = SECONDS * RATE
    starts = window_starts(len(wave), length, SOUND_CLIPS if len(wave) > length else 1)
    clips = [wave[start : start + length].numpy() for start in starts]
    heard: Tensor = extractor()(clips, sampling_rate=RATE, return_tensors="pt")["input_values"]
    return heard.float().transpose(1, 2)[:, None]
