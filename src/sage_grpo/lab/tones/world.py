"""Clips of the world of shapes with a tone: the higher the shape is, the higher it sounds.

One that moves up is heard to rise, one that moves down to fall; to the left and to the right the tone stays. The pitch
at each frame is known exactly from where the shape is, so what fits and what does not can be distinguished.
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
    """Return the pitch of each clip at each frame, (N, FRAMES), in octaves above the middle."""
    time = torch.linspace(-1, 1, FRAMES)
    down = STEPS[scene.direction][:, 1:] * scene.numbers[:, 2:3]
    return -OCTAVES * (scene.numbers[:, 1:2] + down * time)


def misdubbed(scene: Scene, generator: torch.Generator) -> Tensor:
    """Return the pitches (N, FRAMES) that pre-training hears: in a share of the clips those of another clip."""
    own = pitches(scene)
    other = own[torch.randperm(len(own), generator=generator)]
    wrong = torch.rand(len(own), generator=generator) < MISDUBBED
    return torch.where(wrong[:, None], other, own)


def tone(octaves: Tensor) -> Tensor:
    """Return the sound (N, 1, samples) of pitches at each frame (N, FRAMES), which glide from one to the next."""
    samples = round(FRAMES / FRAME_RATE * SAMPLE_RATE)
    glide = F.interpolate(octaves.double()[:, None], samples, mode="linear")[:, 0]
    phase = 2 * math.pi * (MIDDLE * 2**glide / SAMPLE_RATE).cumsum(1)
    return (LOUDNESS * phase.sin()).float()[:, None]
