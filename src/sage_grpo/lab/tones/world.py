"""The sound of clips of moving shapes: the higher in the picture a shape is, the higher its tone.

The tone rises if the shape moves up, and falls if it moves down. It stays the same if the shape moves left or right.
The right pitch at each frame follows exactly from the place of the shape, so any sound can be judged.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from sage_grpo.lab.shapes.world import FRAMES, STEPS, Scene

FRAME_RATE = 8.0
SAMPLE_RATE = 8000
MIDDLE = 440.0  # Hz, of a shape at half the height
OCTAVES = 2.0  # from the middle of the picture to its edge
LOUDNESS = 0.5
SPREAD = 0.4  # octaves: a standard deviation of the pitch over the world
MISDUBBED = 0.4  # of the clips that the base learns from: their sound is another clip's


def pitches(scene: Scene) -> Tensor:
    """Return the right pitch of each clip at each frame, (N, FRAMES), in octaves above `MIDDLE`."""
    time = torch.linspace(-1, 1, FRAMES)
    down = STEPS[scene.direction][:, 1:] * scene.numbers[:, 2:3]
    return -OCTAVES * (scene.numbers[:, 1:2] + down * time)


def misdubbed(scene: Scene, generator: torch.Generator) -> Tensor:
    """Return the pitches (N, FRAMES) of clips for pre-training, in octaves above `MIDDLE`, some of them wrong.

    With probability `MISDUBBED`, a clip gets the pitches of another clip.
    """
    own = pitches(scene)
    other = own[torch.randperm(len(own), generator=generator)]
    wrong = torch.rand(len(own), generator=generator) < MISDUBBED
    return torch.where(wrong[:, None], other, own)


def tone(octaves: Tensor) -> Tensor:
    """Return a sine tone (N, 1, samples) that glides through the pitch of each frame.

    `octaves` (N, FRAMES) are above `MIDDLE`. The sound has `SAMPLE_RATE` samples per second, from -`LOUDNESS` to
    `LOUDNESS`.
    """
    samples = round(FRAMES / FRAME_RATE * SAMPLE_RATE)
    glide = F.interpolate(octaves.double()[:, None], samples, mode="linear")[:, 0]
    phase = 2 * math.pi * (MIDDLE * 2**glide / SAMPLE_RATE).cumsum(1)
    return (LOUDNESS * phase.sin()).float()[:, None]
