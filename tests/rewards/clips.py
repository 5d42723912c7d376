"""Short clips made from one photograph, and ways to spoil them."""

import matplotlib.cbook
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFilter, ImageFont

FRAMES, HEIGHT, WIDTH = 17, 128, 192


def photograph():
    with matplotlib.cbook.get_sample_data("grace_hopper.jpg") as file:
        return Image.open(file).convert("RGB")


PHOTO = photograph()


def window(x, y):
    """The part of the photograph at (x, y), between pixels too."""
    return np.array(PHOTO.transform((WIDTH, HEIGHT), Image.Transform.AFFINE, (1, 0, x, 0, 1, y), Image.BICUBIC))


def pan(dx=2.0, dy=1.0, x=60.0, y=100.0, frames=FRAMES):
    return torch.from_numpy(np.stack([window(x + dx * t, y + dy * t) for t in range(frames)]))


def shaken(clip_x=60.0, clip_y=100.0, by=3.0):
    shifts = np.random.default_rng(0).normal(0, by, (FRAMES, 2))
    return torch.from_numpy(
        np.stack([window(clip_x + 2 * t + a, clip_y + t + b) for t, (a, b) in enumerate(shifts.tolist())])
    )


def object_in_scene():
    """A part of the photograph crosses another one at constant speed."""
    thing, frames = PHOTO.crop((180, 60, 240, 130)), []
    for t in range(FRAMES):
        frame = Image.fromarray(window(150, 300))
        frame.paste(thing, (10 + 6 * t, 30 + t))
        frames.append(np.array(frame))
    return torch.from_numpy(np.stack(frames))


def shuffled(clip):
    return clip[torch.randperm(len(clip), generator=torch.Generator().manual_seed(1))]


def half_rate(clip):
    return clip[torch.arange(len(clip)) // 2 * 2]


def noisy(clip, sigma):
    noise = torch.randn(clip.shape, generator=torch.Generator().manual_seed(0)) * sigma
    return (clip + noise).round().clamp(0, 255).byte()


def blurred(clip, radius):
    pictures = [Image.fromarray(frame.numpy()).filter(ImageFilter.GaussianBlur(radius)) for frame in clip]
    return torch.from_numpy(np.stack([np.array(picture) for picture in pictures]))


def lit(clip, levels):
    return (clip * torch.as_tensor(levels)[:, None, None, None]).round().clamp(0, 255).byte()


def written(text, height=160, width=320, size=40, frames=3):
    """White letters on blue."""
    picture = Image.new("RGB", (width, height), (40, 90, 140))
    font = ImageFont.load_default(size)
    ImageDraw.Draw(picture).text((width // 2, height // 2), text, "white", font, anchor="mm")
    return torch.from_numpy(np.array(picture))[None].repeat(frames, 1, 1, 1)
