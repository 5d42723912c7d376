"""A measure to check the reward of tones: the nearest real clip says where the shape is, the phase what is heard.

Neither the spectrum nor the centre of the light, by which the reward judges, has a part in it.
"""

import numpy as np
import torch
from scipy.signal import hilbert
from torch import Tensor

from sage_grpo.lab.shapes.world import FRAMES, Scene
from sage_grpo.lab.tones.world import MIDDLE, SAMPLE_RATE, pitches


def by_phase(sound: Tensor) -> Tensor:
    """Return the pitch at each frame, (N, FRAMES), of sound (N, channels, samples), in octaves above the middle.

    It is how far the phase turns while the frame is shown.
    """
    phase = np.unwrap(np.angle(hilbert(sound.double().mean(1).numpy(), axis=1)), axis=1)
    turns = np.diff(phase, axis=1, append=phase[:, -1:] * 2 - phase[:, -2:-1]) / (2 * np.pi)
    hertz = turns.reshape(len(turns), FRAMES, -1).mean(2) * SAMPLE_RATE
    return torch.log2(torch.from_numpy(hertz).clamp_min(1) / MIDDLE)


def gaps(sound: Tensor, scene: Scene) -> Tensor:
    """Return the octaves between what is heard and what the scene sounds like, as the mean over frames, (N,)."""
    return (by_phase(sound) - pitches(scene).double()).abs().mean(1)
