"""A held-out measure that checks the reward of tones: the gap between the pitch of the sound and the right pitch.

The pitch of the sound comes from its phase. The right pitch comes from the rendered clip that is nearest to the video.
The reward uses neither: it takes the spectrum of the sound and the centre of the light.
"""

import numpy as np
import torch
from scipy.signal import hilbert
from torch import Tensor

from sage_grpo.lab.shapes.world import FRAMES, Scene
from sage_grpo.lab.tones.world import MIDDLE, SAMPLE_RATE, pitches


def by_phase(sound: Tensor) -> Tensor:
    """Return the pitch at each frame, (N, FRAMES), of sound (N, channels, samples), in octaves above `MIDDLE`.

    The pitch follows from how far the phase of the sound turns while the frame is shown.
    """
    phase = np.unwrap(np.angle(hilbert(sound.double().mean(1).numpy(), axis=1)), axis=1)
    turns = np.diff(phase, axis=1, append=phase[:, -1:] * 2 - phase[:, -2:-1]) / (2 * np.pi)
    hertz = turns.reshape(len(turns), FRAMES, -1).mean(2) * SAMPLE_RATE
    return torch.log2(torch.from_numpy(hertz).clamp_min(1) / MIDDLE)


def gaps(sound: Tensor, scene: Scene) -> Tensor:
    """Return how many octaves each sound is away from the right pitches of its clip, as mean over frames, (N,).

    `sound` is (N, channels, samples), and `scene` has the content of the N clips.
    """
    return (by_phase(sound) - pitches(scene).double()).abs().mean(1)
