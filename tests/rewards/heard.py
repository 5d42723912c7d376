"""A square that begins to move, and tones that begin at a time."""

import math

import torch

FRAMES, RATE = 24, 8.0


def moving_from(start, until=FRAMES):
    """A bright square that stands still, moves two pixels a frame from frame `start` on, and stops."""
    frames = torch.zeros(FRAMES, 32, 64, 3, dtype=torch.uint8)
    for t in range(FRAMES):
        left = 2 * max(0, min(t, until) - start)
        frames[t, 8:24, left : left + 12] = 220
    return frames


def tone_from(seconds, sample_rate=16_000, loud=0.5, length=FRAMES / RATE):
    time = torch.arange(round(length * sample_rate)) / sample_rate
    return torch.where(time >= seconds, loud * torch.sin(2 * math.pi * 330 * time), 0)[None]
