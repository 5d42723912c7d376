"""The synthetic clips of `natural` with a sound that fits, for scorers that hear it.

In each clip, things rest and move in turn, twice, and are heard only while they move. In the clips of `natural`
everything moves from the first frame to the last, so no motion begins. The times of motion follow from the clip's name.
Frames and sound are both made from these times, and neither from the other, as in a film. The sound has the noise of a
room in it, as the frames have that of a sensor.
"""

from collections.abc import Sequence

import numpy as np
import torch

from sage_grpo.core.protocols import Videos
from sage_grpo.evaluation.audit.natural import FPS, Array, Picture, Scene, clip

FRAMES, SAMPLE_RATE = 33, 16_000
STARTS = ((0.2, 0.5), (1.1, 1.4))  # seconds between which it begins to go
GOES = (0.3, 0.5)  # seconds that it does so
ATTACK, RELEASE = 0.01, 0.05  # seconds
LOUD, ROOM = 0.3, 0.001  # of full scale

Going = Sequence[tuple[float, float]]  # from when until when, in seconds


def going(name: str) -> Going:
    """Return the times in which things move in the clip `name`: pairs of start and end, in seconds."""
    random = np.random.default_rng([*map(ord, name), 1])
    return [(start, start + random.uniform(*GOES)) for start in (random.uniform(*between) for between in STARTS)]


def way(times: Array, moves: Going) -> Array:
    """Return the time of the scene, from 0 to 1, at each of `times`, in seconds.

    The scene advances while things move, and not at all in between.
    """
    travelled = np.sum([np.clip(times, start, end) - start for start, end in moves], axis=0)
    far: Array = travelled / sum(end - start for start, end in moves)
    return far


def wave(name: str, moves: Going, seconds: float) -> Array:
    """Return the sound of the clip `name`, (samples,), from -1 to 1: a rustle with a tone, heard while things move.

    Each clip has a pitch of its own.
    """
    random = np.random.default_rng([*map(ord, name), 2])
    times = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    pitch = random.uniform(200, 800)
    rustle = 0.5 * np.sin(2 * np.pi * pitch * times) + 0.5 * random.normal(0, 0.5, len(times))
    loud = sum(
        np.clip((times - start) / ATTACK, 0, 1) * np.exp(-np.clip(times - end, 0, None) / RELEASE)
        for start, end in moves
    )
    heard: Array = (LOUD * loud * rustle + random.normal(0, ROOM, len(times))).clip(-1, 1)
    return heard


def heard_clip(name: str, scene: Scene) -> Videos:
    """Return the scene as a batch of one, in which things move and rest, with its sound (1, 1, samples)."""
    moves = going(name)

    def frame(t: float) -> Picture:
        return scene.frame(float(way(np.array(t * (FRAMES - 1) / FPS), moves)))

    frames = clip(name, Scene(scene.prompt, frame), FRAMES)
    sound = torch.from_numpy(wave(name, moves, FRAMES / FPS)).float()
    return Videos(frames[None], FPS, sound[None, None], SAMPLE_RATE)
